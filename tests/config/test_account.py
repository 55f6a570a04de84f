import subprocess
import sys


def test_accounting_is_imported_without_torch() -> None:
    """A table of epsilons should not wait seconds for a library it does not use."""
    program = "import sys, dpft.cli.account; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
