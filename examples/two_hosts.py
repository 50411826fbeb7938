"""Two hosts, a stage on each: every process runs this script, and torchrun tells it which stage is its own.

On host 0, whose address is FIRST, and on host 1, where the code and the packages are the same:

    torchrun --nnodes 2 --node-rank 0 --nproc-per-node 1 --master-addr FIRST --master-port 29500 examples/two_hosts.py
    torchrun --nnodes 2 --node-rank 1 --nproc-per-node 1 --master-addr FIRST --master-port 29500 examples/two_hosts.py

With 127.0.0.1 as FIRST two terminals of one machine do. Seconds; with --quick behind the script a few batches.
"""

import os
import sys
from functools import partial
from socket import gethostname

import torch
import torch.nn.functional as F

import freewheel as fw

if "RANK" not in os.environ:
    sys.exit(f"torchrun starts this script, in as many processes as there are stages:\n{__doc__}")
QUICK = "--quick" in sys.argv
rank = int(os.environ["RANK"])

data = fw.data.load("digits", train_limit=320 if QUICK else None)  # rank 0 feeds the pipeline; the others score with it
torch.manual_seed(0)  # all processes make the same network
stages = fw.split(fw.models.build("digits-cnn", **data.shapes), 2, by="parameters")  # measured times would differ


def show(end: fw.EpochEnd) -> None:
    """Print a line for each epoch; only rank 0 calls it."""
    epoch = end.record
    print(f"epoch {epoch.epoch + 1}  loss {epoch.loss:.4f}  test accuracy {epoch.validation.metric:.1%}", flush=True)


trainer = fw.Trainer(
    stages,
    method="pipedream",
    loss=F.cross_entropy,
    optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    runtime="torchrun",
    transport="gloo",  # by TCP; the default takes shared memory between processes of one host, and NCCL between GPUs
    interface=os.environ.get("GLOO_SOCKET_IFNAME"),  # such as eth0, where the host's name leads elsewhere
    threads=1,  # on every host the same, as all that changes numbers
)
trainer.fit(data.train, epochs=2 if QUICK else 8, validate=data.test, callbacks=[show])
score = trainer.evaluate(data.test)  # in the end every process has the whole network
print(f"rank {rank} on {gethostname()}: stage {rank}, test accuracy {score.metric:.1%}", flush=True)
