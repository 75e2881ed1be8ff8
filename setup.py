"""The compiled kernel; everything else about the package is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "fedsofim_kernel",
            [
                f"fedsofim/models/{name}.c"
                for name in ("kernel", "client", "crowd", "moments", "normals", "streams", "team")
            ],
            depends=[
                f"fedsofim/models/{name}.h"
                for name in ("kernel", "panels", "softmax", "streams", "tiles")
            ],
            extra_compile_args=["-O3", "-fno-math-errno", "-fno-trapping-math"],
            optional=True,  # without a compiler, NumPy does the same
        )
    ]
)
