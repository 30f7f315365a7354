"""GIT: an image's tokens as a prefix of the text."""
