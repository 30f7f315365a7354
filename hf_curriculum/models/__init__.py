"""GIT and Flamingo, captioners for small data; and the models that ship, for scenes."""
