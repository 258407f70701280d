"""The compiled modules: every *.pyx under src/ephemera. All else is in pyproject.toml.

EPHEMERA_SANITIZE=1 builds them with the address and undefined-behaviour sanitizers, apart from the
ordinary build. EPHEMERA_FILE_LOCK=1 builds them with the locks of systems that have no robust mutexes
(`engines/local/_shared.h`), for tests of those on Linux; the modules themselves are put where the ordinary
ones are, so do it in a working tree of its own.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

SOURCES = Path("src")
IS_SANITIZED = os.environ.get("EPHEMERA_SANITIZE", "0") not in ("", "0")
HAS_FILE_LOCK = os.environ.get("EPHEMERA_FILE_LOCK", "0") not in ("", "0")
COMPILING = {"bdist_wheel", "build", "build_ext", "develop", "editable_wheel", "install"}
BUILD_DIR = "/".join(["build", *["sanitized"] * IS_SANITIZED, *["file-lock"] * HAS_FILE_LOCK])

# What compilers say of the code that Cython writes.
QUIET = ["-Wno-unknown-warning-option", "-Wno-unused-function", "-Wno-maybe-uninitialized"]

COMPILER_MISSING = (
    "ephemera: a C compiler is needed to build its compiled modules: "
    "install gcc (Debian: apt-get install gcc python3-dev) or clang"
)
HEADERS_MISSING = (
    "ephemera: the headers of Python are needed to build its compiled modules: "
    "install them (Debian: apt-get install python3-dev)"
)


def main() -> None:
    if COMPILING.intersection(sys.argv):
        check_tools()
    setup(
        ext_modules=[extension(path) for path in sorted(SOURCES.glob("ephemera/**/*.pyx"))],
        cmdclass={"build_ext": BuildCompiled},
        options={
            "build": {"build_base": BUILD_DIR},
            "build_ext": {"parallel": os.cpu_count() or 1},
        },
    )


def extension(path: Path) -> Extension:
    """The compiled module of one .pyx; Cython finds the declarations and headers that it depends on."""
    return Extension(
        name=".".join(path.relative_to(SOURCES).with_suffix("").parts),
        sources=[str(path)],
        include_dirs=[str(path.parent)],
        define_macros=[("EPHEMERA_FILE_LOCK", "1")] if HAS_FILE_LOCK else [],
        extra_compile_args=["-pthread", *QUIET, *optimization()],
        extra_link_args=["-pthread", *(sanitizers() if IS_SANITIZED else [])],
    )


def optimization() -> list[str]:
    if IS_SANITIZED:
        return [*sanitizers(), "-fno-omit-frame-pointer", "-g", "-O1"]
    return [] if "-O" in os.environ.get("CFLAGS", "") else ["-O3"]


def sanitizers() -> list[str]:
    return ["-fsanitize=address,undefined"]


def check_tools() -> None:
    """Stop with one line when there is nothing to compile with."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    if shutil.which(shlex.split(compiler)[0]) is None:
        raise SystemExit(COMPILER_MISSING)
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise SystemExit(HEADERS_MISSING)


class BuildCompiled(build_ext):
    def run(self) -> None:
        try:
            super().run()
        except (CompileError, LinkError) as error:
            raise SystemExit(f"ephemera: the compiled modules were not built: {error}") from None

    def build_extensions(self) -> None:
        # Imported here: only a build needs Cython, not the making of a source archive.
        from Cython.Build import cythonize
        from Cython.Compiler.Errors import CompileError as CythonError

        try:
            made = cythonize(
                self.extensions,
                build_dir=f"{BUILD_DIR}/cython",
                include_path=[str(SOURCES)],
                quiet=True,
            )
        except CythonError as error:
            raise CompileError(f"Cython rejects {error}") from None
        found = {compiled.name: compiled for compiled in made}
        for compiled in self.extensions:
            compiled.sources = found[compiled.name].sources
            compiled.depends = found[compiled.name].depends
        super().build_extensions()


main()
