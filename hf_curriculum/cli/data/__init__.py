"""Commands that make a data set, or look at one."""
