"""The compiled kernel; everything else about the package is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "fedsofim_kernel",
            ["fedsofim/models/kernel.c"],
            extra_compile_args=["-O3", "-fno-math-errno", "-fno-trapping-math"],
            optional=True,  # without a compiler, fedsofim/models/head.py does with NumPy
        )
    ]
)
