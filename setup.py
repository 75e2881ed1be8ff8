"""The compiled kernel; everything else about the package is in pyproject.toml."""

from setuptools import Extension, setup

SOURCES = ["kernel", "client", "crowd", "decode", "held", "moments", "normals", "streams", "team"]
HEADERS = ["decode", "kernel", "panels", "softmax", "streams", "tiles"]

setup(
    ext_modules=[
        Extension(
            "fedsofim_kernel",
            [f"fedsofim/models/{name}.c" for name in SOURCES],
            depends=[f"fedsofim/models/{name}.h" for name in HEADERS],
            extra_compile_args=["-O3", "-fno-math-errno", "-fno-trapping-math"],
            optional=True,  # without a compiler, NumPy does the same
        )
    ]
)
