"""`verify`, which lists what is wrong, as a check."""

from hf_curriculum.files import DamagedFileError
from hf_curriculum.verify import verify


def verify_all(path):
    """Raises a `DamagedFileError` for the first thing at a path that is not as it was written."""
    for each in verify(path):
        if each.error is not None:
            raise DamagedFileError(each.error)
