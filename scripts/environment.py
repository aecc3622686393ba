"""For scripts that need the project: to import this goes on with the Python of its environment, whatever Python started
the script."""

import os
import sys
from pathlib import Path

SCRIPT = Path(sys.argv[0]).resolve()
ENVIRONMENT = Path(__file__).resolve().parent.parent / ".venv"

if Path(sys.prefix).resolve() != ENVIRONMENT.resolve():
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{SCRIPT.name}: there is no .venv yet: run scripts/demo or scripts/test first")
    os.execv(python, [str(python), str(SCRIPT), *sys.argv[1:]])
