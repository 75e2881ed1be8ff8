"""What moves arrays between the server and its clients."""

from fedsofim.engines.local import run as run_local

ENGINES = {"local": run_local}
