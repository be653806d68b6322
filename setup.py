"""The one compiled module; everything else is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "strandline.speedups._compiled",
            ["src/strandline/speedups/_compiled.pyx"],
            optional=True,  # without a compiler its plain Python twin is used (docs/adr/0043)
        )
    ]
)
