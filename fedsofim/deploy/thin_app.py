"""A Flower app of a few text files, which runs what is installed as `fedsofim`.

It is small enough for people to read in full before they sign it or run it, and has the form that
Flower asks of an app (`fab-format-version` 1). The code that trains is not in it: that is the
installed package, whose version the app asks for, on every machine its owner's choice.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from fedsofim import __version__
from fedsofim.core.errors import require
from fedsofim.federation.run_config import section

PACKAGE = "fedsofim_app"
FLOWER, TARGET = ">=1.41,<1.42", "1.41.0"

PROJECT = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "1.0.0"
description = "Differentially private federated learning with fedsofim"
license = {{ file = "LICENSE" }}
requires-python = ">=3.11"
dependencies = ["fedsofim[ray]>={version},<{next}", "flwr[simulation]{flower}"]

[tool.setuptools]
packages = ["{package}"]

[tool.flwr.app]
publisher = "{publisher}" # your account's name, if it is to go to Flower's Hub
fab-format-version = 1
flwr-version-target = "{target}"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

# "" is the default of fedsofim. Flower refuses keys that are not here.
{config}"""

README = """# {name}

Trains privately in a federation, with Flower and the installed package fedsofim {version}.

    export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
    export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
    flwr run . --stream                    # a simulation
    flwr run . --stream --run-config 'strategy="fedgd" epsilon=1.0'
    flwr run . deployment --stream         # real machines, after 'fedsofim deploy server'

`pyproject.toml` has the keys, and says what each is. The variables keep Flower from installing the
dependencies again for every run; they count when its local daemon starts. Relative paths are taken
from where that was, or from the checkout of a package that is installed in place.

The two files of `{package}/` name the code that runs: it is not in this app, but in the package
that is installed on each machine. Who signs this app (`fedsofim deploy sign --app .`) vouches for
these files and these defaults; the package is each owner's own to choose.
"""

SERVER = '''"""The server's side: composes the run from the app's config, and trains."""

from fedsofim.federation import server_app

app = server_app.app
'''
CLIENT = '''"""A client's side: its owner's budget and ledger decide what leaves the machine."""

from fedsofim.federation import client_app

app = client_app.app
'''
LICENSE = """Licensed under the Apache License, Version 2.0 (the "License"); you may not use these
files except in compliance with the License. You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software distributed under the License is
distributed on an "AS IS" BASIS, WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or
implied. See the License for the specific language governing permissions and limitations under the
License.
"""


def write_app(folder: Path, overrides: Sequence[str] = (), *, publisher: str = "fedsofim") -> Path:
    """Write the app to a new or empty folder.

    Args:
        folder: where to; its name becomes the app's.
        overrides: the config that a run has unless it is told otherwise.
        publisher: who offers the app.
    """
    folder = folder.expanduser().resolve()
    require(not folder.exists() or folder.is_dir(), f"{folder}: there is a file of that name")
    used = folder.is_dir() and any(folder.iterdir())
    require(not used, f"{folder}: is not empty; name a new folder")
    name = re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-")
    require(bool(name), f"{folder.name}: an app's name has letters or digits")
    require(bool(re.fullmatch(r"[\w-]+", publisher)), f"--publisher {publisher}: give one word")
    major, minor, *_ = __version__.split(".")
    words = {
        "name": name,
        "package": PACKAGE,
        "publisher": publisher,
        "version": __version__,
        "next": f"{major}.{int(minor) + 1}",
        "flower": FLOWER,
        "target": TARGET,
    }
    files = {
        "pyproject.toml": PROJECT.format(**words, config=section(overrides)),
        "README.md": README.format(**words),
        "LICENSE": LICENSE,
        f"{PACKAGE}/__init__.py": '"""A private federation, by fedsofim."""\n',
        f"{PACKAGE}/server_app.py": SERVER,
        f"{PACKAGE}/client_app.py": CLIENT,
    }
    for file, text in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    return folder
