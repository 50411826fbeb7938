"""Credits: the sources of a stage's learning signal, one file each."""

from freewheel._errors import of_type, one_of
from freewheel.credit._chain_stage import ChainStage
from freewheel.credit._credit import Credit
from freewheel.credit._heads import Draw, HeadOptions
from freewheel.credit._predictors import PredictorOptions
from freewheel.credit.aligned import Aligned
from freewheel.credit.chain import Chain
from freewheel.credit.feedback import Feedback, Signal
from freewheel.credit.forward import Forward
from freewheel.credit.local import Local
from freewheel.credit.synthetic import Synthetic
from freewheel.plan import CREDITS

CREDITS |= {
    "chain": Chain,
    "aligned": Aligned,
    "forward": Forward,
    "local": Local,
    "synthetic": Synthetic,
    "feedback": Feedback,
}


def find_credit(given: str | Credit) -> Credit:
    """Return a credit by name, with default options; a `Credit` is returned unchanged."""
    if not isinstance(given, str):
        return of_type("credit", given, Credit, "give a name such as 'chain', or a credit such as fw.Forward()")
    one_of("credit", given, CREDITS)
    return CREDITS[given]()  # pyright: ignore[reportReturnType]


__all__ = [
    "CREDITS",
    "Aligned",
    "Chain",
    "ChainStage",
    "Credit",
    "Draw",
    "Feedback",
    "Forward",
    "HeadOptions",
    "Local",
    "PredictorOptions",
    "Signal",
    "Synthetic",
    "find_credit",
]
