"""The containers of `torch.nn` whose forward asks about its input: how to trace them, so that they are cut inside.

Each is written again as it runs in training, and what depends on the masks is a call of its own. The layers stay whole.
In evaluation `nn.TransformerEncoder` may pack padded sequences, and the padded positions then become 0: here too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.modules.transformer import _detect_is_causal_mask


def encode(
    encoder: nn.TransformerEncoder,
    src: Any,
    mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: bool | None = None,
) -> Any:
    """`nn.TransformerEncoder.forward`."""
    padding = _recorded(canonical_mask, src_key_padding_mask, src.dtype)
    mask = _recorded(canonical_mask, mask, src.dtype)
    causal = _recorded(is_causal_mask, mask, is_causal)
    output = src
    for layer in encoder.layers:
        output = layer(output, src_mask=mask, is_causal=causal, src_key_padding_mask=padding)
    if padding is not None and mask is None and encoder.use_nested_tensor:
        packs = encoder.mask_check, encoder.layers[0].training
        output = _recorded(packed, output, padding, *packs)
    return output if encoder.norm is None else encoder.norm(output)


def decode(
    decoder: nn.TransformerDecoder,
    tgt: Any,
    memory: Any,
    tgt_mask: Any = None,
    memory_mask: Any = None,
    tgt_key_padding_mask: Any = None,
    memory_key_padding_mask: Any = None,
    tgt_is_causal: bool | None = None,
    memory_is_causal: bool = False,
) -> Any:
    """`nn.TransformerDecoder.forward`."""
    causal = _recorded(is_causal_mask, tgt_mask, tgt_is_causal)
    output = tgt
    for layer in decoder.layers:
        output = layer(
            output,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=causal,
            memory_is_causal=memory_is_causal,
        )
    return output if decoder.norm is None else decoder.norm(output)


def transform(
    transformer: nn.Transformer,
    src: Any,
    tgt: Any,
    src_mask: Any = None,
    tgt_mask: Any = None,
    memory_mask: Any = None,
    src_key_padding_mask: Any = None,
    tgt_key_padding_mask: Any = None,
    memory_key_padding_mask: Any = None,
    src_is_causal: bool | None = None,
    tgt_is_causal: bool | None = None,
    memory_is_causal: bool = False,
) -> Any:
    """`nn.Transformer.forward`."""
    memory = transformer.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal)
    return transformer.decoder(
        tgt,
        memory,
        tgt_mask=tgt_mask,
        memory_mask=memory_mask,
        tgt_key_padding_mask=tgt_key_padding_mask,
        memory_key_padding_mask=memory_key_padding_mask,
        tgt_is_causal=tgt_is_causal,
        memory_is_causal=memory_is_causal,
    )


CONTAINERS: dict[Any, Callable[..., Any]] = {
    nn.TransformerEncoder.forward: encode,
    nn.TransformerDecoder.forward: decode,
    nn.Transformer.forward: transform,
}


def canonical_mask(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """The mask as numbers to add: a boolean one has -inf where it is True."""
    return F._canonical_mask(mask, "mask", None, "", dtype, check_other=False)


def is_causal_mask(mask: Tensor | None, hint: bool | None) -> bool:
    """Whether the mask is the causal one; the hint, if there is one, is believed."""
    return _detect_is_causal_mask(mask, hint)


def packed(output: Tensor, padding: Tensor, mask_check: bool, training: bool) -> Tensor:
    """The output with zeros in padded positions where the encoder would have packed the sequences.

    Example:
        >>> padding = torch.tensor([[0.0, -torch.inf]])
        >>> with torch.no_grad():
        ...     packed(torch.ones(1, 2, 1), padding, True, training=False).flatten().tolist()
        [1.0, 0.0]
    """
    if training or torch.is_grad_enabled() or torch.is_autocast_enabled() or output.dim() != 3:
        return output
    kept = padding.logical_not()
    if not torch.backends.mha.get_fastpath_enabled():
        return output
    if mask_check and not torch.ops.aten._nested_tensor_from_mask_left_aligned(output, kept):
        return output
    return output.masked_fill(~kept.unsqueeze(-1), 0.0)


def _recorded(function: Callable[..., Any], value: Any, *options: Any) -> Any:
    """Call a function, or record the call if one of its arguments is traced; None stays None."""
    tracers = [a.tracer for a in (value, *options) if isinstance(a, fx.Proxy)]
    if value is None or not tracers:
        return function(value, *options)
    return tracers[0].create_proxy("call_function", function, (value, *options), {})
