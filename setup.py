"""The one compiled module; everything else is in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "strandline.speedups._compiled",
            ["src/strandline/speedups/_compiled.pyx"],
            # The same bytes wherever it is built: no directory's name in them.
            extra_compile_args=[f"-ffile-prefix-map={Path.cwd()}=."],
            optional=True,  # without a compiler its plain Python twin is used (docs/adr/0043)
        )
    ]
)
