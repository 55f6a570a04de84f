"""A program that says something by every way there is, then ends with an error."""

PROGRAM = """
import logging, os, subprocess, sys
from dpft.errors import InputError
from dpft.parallel import rank_environment
from tests.job_exit_codes import exit_code_of_job

rank_environment.time.sleep = lambda _: print("waited", file=rank_environment.error_stream())

def job():
    print("print", flush=True)
    os.write(2, b"descriptor ")
    logging.basicConfig(format="%(message)s")
    logging.warning("log")
    subprocess.run(["echo", "child"])
    raise InputError("wrong")

with rank_environment.silent_except_rank_0():
    code = exit_code_of_job(job)
print("after", file=sys.stderr)
sys.exit(code)
"""
