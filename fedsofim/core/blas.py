"""The matrix product of NumPy's own BLAS, for compiled code to call."""

import ctypes
from functools import cache
from pathlib import Path

from fedsofim.core.threads import libraries


@cache
def sgemm() -> int:
    """The address of its `cblas_sgemm` with sizes of 64 bits, as NumPy's wheels have it; else 0."""
    for library in libraries().info():
        path = Path(library["filepath"])
        if library["user_api"] == "blas" and path.parent.name == "numpy.libs":
            found = getattr(ctypes.CDLL(str(path)), "scipy_cblas_sgemm64_", None)
            return (ctypes.cast(found, ctypes.c_void_p).value or 0) if found else 0
    return 0
