"""Credits: the sources of a stage's learning signal, one file each."""

from freewheel._errors import of_type, one_of
from freewheel.credit._chain_stage import ChainStage as ChainStage
from freewheel.credit._credit import Credit as Credit
from freewheel.credit._graph import contents as contents
from freewheel.credit._heads import Draw as Draw, HeadOptions as HeadOptions
from freewheel.credit._predictors import PredictorOptions as PredictorOptions
from freewheel.credit.aligned import Aligned as Aligned
from freewheel.credit.chain import Chain as Chain
from freewheel.credit.feedback import Feedback as Feedback, Signal as Signal
from freewheel.credit.forward import Forward as Forward
from freewheel.credit.local import Local as Local
from freewheel.credit.synthetic import Synthetic as Synthetic
from freewheel.plan import CREDITS as CREDITS

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
