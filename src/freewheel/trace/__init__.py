"""Traces: what every stage has done, and when."""

from freewheel.trace._event import TraceEvent as TraceEvent, row_name as row_name, row_of as row_of
from freewheel.trace._recording import DATA as DATA, Recording as Recording
from freewheel.trace._stream import StreamTracer as StreamTracer, TimeBase as TimeBase, tracer_for as tracer_for
from freewheel.trace._trace import Trace as Trace, traced_batches as traced_batches
from freewheel.trace._tracer import HostTracer as HostTracer, Tracer as Tracer
