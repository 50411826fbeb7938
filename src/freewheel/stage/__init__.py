"""Stages: a module, its optimizer, its weight versions and its random numbers. The credit decides how it learns."""

from freewheel.stage._blueprint import (
    Blueprint as Blueprint,
    StageOptions as StageOptions,
    blueprints as blueprints,
    factory_of as factory_of,
)
from freewheel.stage._code import CompiledCode as CompiledCode, filled as filled, template_of as template_of
from freewheel.stage._compiled import CompiledFunction as CompiledFunction
from freewheel.stage._copies import copied as copied
from freewheel.stage._gradients import NO_GRAPH as NO_GRAPH, add as add, align_gradient as align_gradient
from freewheel.stage._groups import Group as Group, make_watchable as make_watchable, watched_groups as watched_groups
from freewheel.stage._held import Held as Held, Holders as Holders
from freewheel.stage._hooks import (
    check_no_hooks as check_no_hooks,
    check_no_module_hooks as check_no_module_hooks,
    check_not_compiled as check_not_compiled,
)
from freewheel.stage._launch import (
    Launcher as Launcher,
    NotYetError as NotYetError,
    seeded_by_key as seeded_by_key,
)
from freewheel.stage._lead import lead as lead, repeat_lead as repeat_lead
from freewheel.stage._loss import (
    has_weights as has_weights,
    loss_of as loss_of,
    with_loss as with_loss,
    without_loss as without_loss,
)
from freewheel.stage._memory_format import store_channels_last as store_channels_last
from freewheel.stage._random import SeededDraws as SeededDraws
from freewheel.stage._reads import names_in_forward as names_in_forward
from freewheel.stage._recurrent import (
    Recurrent as Recurrent,
    check_split_along_time as check_split_along_time,
    recurrent_layers as recurrent_layers,
)
from freewheel.stage._settings import changed_setting as changed_setting, settings_of as settings_of
from freewheel.stage._slots import hooked as hooked, tensor_slots as tensor_slots
from freewheel.stage._stage import Stage as Stage, Tree as Tree, Verbs as Verbs
from freewheel.stage._stand_ins import StandIns as StandIns, noted_stand_ins as noted_stand_ins
from freewheel.stage._state import (
    has_state as has_state,
    load_buffers as load_buffers,
    load_tensors as load_tensors,
    restored_buffers as restored_buffers,
    scratch_buffers as scratch_buffers,
    step_scheduler as step_scheduler,
    tensors_of as tensors_of,
)
from freewheel.stage._trainable import retrained as retrained
from freewheel.stage._trees import (
    Shape as Shape,
    copies as copies,
    described as described,
    flatten as flatten,
    homes as homes,
    map_tensors as map_tensors,
    memory as memory,
    tensors_among as tensors_among,
    to_device as to_device,
    unflatten as unflatten,
    versions as versions,
)
from freewheel.stage._weights import (
    Current as Current,
    Live as Live,
    Stash as Stash,
    WeightVersions as WeightVersions,
    late_weights as late_weights,
)
