"""A process that takes a claim, says how it went, and does what it is told: claimant.py DIRECTORY RUN OWNER."""

import os
import sys
import time

from tfdist.checkpoint.claim import Claim
from tfdist.checkpoint.files import open_files
from tfdist.errors import CheckpointClaimedError

claim = Claim(open_files(sys.argv[1]), sys.argv[2], sys.argv[3], patience=float(sys.argv[4]))
try:
    claim.take()
except CheckpointClaimedError as error:
    print(f"refused: {error}", flush=True)
    sys.exit(3)
print("taken", flush=True)
for line in sys.stdin:
    if line == "fork\n":
        child = os.fork()
        if not child:
            os.close(0)
            time.sleep(60)
            os._exit(0)
        print(child, flush=True)
    if line == "release\n":
        claim.release()
        print("released", flush=True)
