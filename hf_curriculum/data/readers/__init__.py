"""One file per form in which captioned images come; `hf_curriculum.data.load` picks the reader."""
