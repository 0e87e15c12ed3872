"""Builds the compiled hot path where a C compiler exists; everything else is in pyproject.toml.

The extension is optional: without a compiler the install succeeds and BraidMQ runs on the pure-Python twin
(`braidmq.hot.pure`), which it says once at start.
"""

from Cython.Build import cythonize
from setuptools import Extension, setup

extensions = cythonize(
    [Extension("braidmq.hot._native", ["src/braidmq/hot/_native.pyx"], extra_compile_args=["-O3", "-fno-strict-aliasing"])],
    language_level=3,
    build_dir="build/cython",
)
for extension in extensions:
    # Set here because cythonize builds new objects and forgets it.
    extension.optional = True

setup(ext_modules=extensions)
