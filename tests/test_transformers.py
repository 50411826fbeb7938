"""Models of Hugging Face transformers, tiny and random, in three stages."""

from __future__ import annotations

import copy
import importlib.util
from functools import partial

import pytest
import torch
import torch.nn.functional as F

import freewheel as fw
from spread import exhaustive, rarely
from vision import declare_operators

if importlib.util.find_spec("transformers") is None:
    pytest.skip("needs transformers: pip install 'freewheel[dev]'", allow_module_level=True)
declare_operators()

import transformers as hf  # noqa: E402

SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
WORDS, CLASSES = 23, 3
ENDS = {"bos_token_id": 0, "eos_token_id": 1}


def gpt2(attention, tied=False, dropout=0.0):
    rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    size = {"vocab_size": WORDS, "n_positions": 16, "n_embd": 8, "n_layer": 3, "n_head": 2}
    config = hf.GPT2Config(**size, **rates, **ENDS, tie_word_embeddings=tied, attn_implementation=attention)
    return hf.GPT2LMHeadModel(config)


def llama(attention, **options):
    size = {"vocab_size": WORDS, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16}
    return hf.LlamaForCausalLM(hf.LlamaConfig(**size, **heads, **ENDS, **options, attn_implementation=attention))


def bert(attention, kind="BertForSequenceClassification", dropout=0.0):
    size = {"vocab_size": WORDS, "hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2}
    more = {"intermediate_size": 16, "max_position_embeddings": 16, "num_labels": CLASSES}
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return getattr(hf, kind)(hf.BertConfig(**size, **more, **rates, attn_implementation=attention))


def distilbert(attention):
    size = {"vocab_size": WORDS, "dim": 8, "n_layers": 3, "n_heads": 2, "hidden_dim": 16}
    rates = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
    more = {"max_position_embeddings": 16, "num_labels": CLASSES}
    config = hf.DistilBertConfig(**size, **more, **rates, attn_implementation=attention)
    return hf.DistilBertForSequenceClassification(config)


def vit(attention):
    size = {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16}
    image = {"image_size": 8, "patch_size": 4, "num_channels": 1, "num_labels": CLASSES}
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return hf.ViTForImageClassification(hf.ViTConfig(**size, **image, **rates, attn_implementation=attention))


def t5(attention):
    size = {"vocab_size": WORDS, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 2}
    return hf.T5ForConditionalGeneration(hf.T5Config(**size, dropout_rate=0.0, decoder_start_token_id=0))


def whisper(attention):
    size = {"d_model": 8, "encoder_layers": 3, "encoder_attention_heads": 2, "encoder_ffn_dim": 16}
    sound = {"num_mel_bins": 4, "max_source_positions": 10}
    from transformers.models.whisper.modeling_whisper import WhisperEncoder  # slow to import

    return WhisperEncoder(hf.WhisperConfig(**size, **sound, dropout=0.0, attn_implementation=attention))


def albert(attention):
    """Layers that share their weights: all stages but the first borrow them."""
    size = {"vocab_size": WORDS, "embedding_size": 8, "hidden_size": 8, "num_hidden_layers": 3}
    more = {"num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 16, "num_labels": CLASSES}
    rates = dict.fromkeys(["hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob"], 0.0)
    return hf.AlbertForSequenceClassification(hf.AlbertConfig(**size, **more, **rates, attn_implementation=attention))


def bart(attention):
    size = {"vocab_size": WORDS, "d_model": 8, "encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    ends = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "forced_eos_token_id": 2}
    config = hf.BartConfig(
        **size, **heads, **ends, decoder_start_token_id=2, dropout=0.0, attn_implementation=attention
    )
    return hf.BartForConditionalGeneration(config)


def words(g, length=6):
    return torch.randint(2, WORDS, (4, length), generator=g)


def texts(g):
    return words(g)


def pairs(g):
    return {"input_ids": words(g), "decoder_input_ids": words(g, 5)}


def images(g):
    return torch.randn(4, 1, 8, 8, generator=g)


def sounds(g):
    return torch.randn(4, 4, 20, generator=g)


# Each with the attention it is tried with, what it is called with, and the shape of its targets.
MODELS = {
    "gpt2": (gpt2, "sdpa", texts, (4, 6)),
    "gpt2-tied": (partial(gpt2, tied=True), "eager", texts, (4, 6)),
    "llama": (llama, "sdpa", texts, (4, 6)),
    "llama-tied": (partial(llama, tie_word_embeddings=True), "eager", texts, (4, 6)),
    "bert": (bert, "eager", texts, (4,)),
    "bert-lm": (partial(bert, kind="BertForMaskedLM"), "sdpa", texts, (4, 6)),
    "distilbert": (distilbert, "sdpa", texts, (4,)),
    "vit": (vit, "eager", images, (4,)),
    "t5": (t5, "eager", pairs, (4, 5)),
    "whisper": (whisper, "sdpa", sounds, (4, 10)),
    "albert": (albert, "eager", texts, (4,)),
    "bart": (bart, "sdpa", pairs, (4, 5)),
}


def loss(out, target):
    scores = out.get("logits", out[0])
    return F.cross_entropy(scores.flatten(0, -2), target.flatten())


def own_loss(out, target):
    """The loss that the model has computed from its labels."""
    return out.loss


def cut(name, example=None, make=None, attention=None):
    maker, usual, inputs, _ = MODELS[name]
    torch.manual_seed(0)
    model = (make or maker)(attention or usual)
    return fw.split(model, 3, example=inputs(torch.Generator()) if example is None else example, by="parameters")


def batches(name, count=5):
    g = torch.Generator().manual_seed(1)
    _, _, inputs, shape = MODELS[name]
    out = [(inputs(g), torch.randint(CLASSES, shape, generator=g)) for _ in range(count)]
    x, y = out[-1]  # the last batch of an epoch is often smaller
    return [*out[:-1], ({k: v[:3] for k, v in x.items()} if isinstance(x, dict) else x[:3], y[:3])]


def call(model, x):
    return model(**x) if isinstance(x, dict) else model(x)


def plain(stages, data, loss=loss):
    model = copy.deepcopy(stages).model.train()
    optimizer = SGD(model.parameters())
    for x, y in data:
        optimizer.zero_grad()
        loss(call(model, x), y).backward()
        optimizer.step()
    return dict(model.named_parameters())


def trained(stages, data, method, runtime="simulate", loss=loss):
    stages = copy.deepcopy(stages)
    trainer = fw.Trainer(stages, method=method, loss=loss, optimizer=SGD, runtime=runtime, seed=0, threads=1)
    trainer.fit(data)
    assert trainer.model() is stages.model
    return dict(stages.model.named_parameters())


def assert_close(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")


def assert_equal(found, wanted):
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


QUICK = ("gpt2-tied", "bert")


@pytest.mark.parametrize("name", [name if name in QUICK else rarely(name) for name in MODELS])
def test_in_three_stages(name):
    stages, data = cut(name), batches(name)
    assert len(stages) == 3
    shares = [cost / sum(stages.report.costs) for cost in stages.report.costs]
    assert max(shares) < 0.5
    out = data[-1][0]
    for stage in copy.deepcopy(stages).copy():
        out = stage.eval()(out)
    whole = call(copy.deepcopy(stages).model.eval(), data[-1][0])
    assert type(out) is type(whole)
    assert torch.equal(out[0], whole[0])
    assert_close(trained(stages, data, "bp"), plain(stages, data))
    for method in ("pipedream", fw.AsyncFGD(scale=0.1)):
        assert_equal(trained(stages, data, method, "threads"), trained(stages, data, method))


@exhaustive  # a worker takes seconds to import transformers
@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("gpt2-tied", "pipedream"),
        ("t5", fw.AsyncFGD(scale=0.1)),
        ("bert", "pipedream"),
        ("vit", "fr"),
        ("llama", "asyncfgd"),
    ],
)
def test_in_processes(name, method):
    stages, data = cut(name), batches(name)
    assert_equal(trained(stages, data, method, "processes"), trained(stages, data, method))


# -- what people give them -------------------------------------------------------------------------------------------


def labelled(g, *, padded, labels):
    mask = torch.ones(4, 6, dtype=torch.long)
    if padded:
        mask[1, 4:] = mask[3, 2:] = 0
    ids = words(g)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids if labels is None else labels}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["gpt2-tied", pytest.param("llama", marks=exhaustive), "distilbert"])
def test_masks_and_labels_are_those_of_each_batch(name, attention):
    """The example has no padding; the batches have, and their loss is the model's own."""
    g = torch.Generator().manual_seed(1)
    labels = torch.tensor([0, 1, 2, 0]) if name == "distilbert" else None
    data = [(labelled(g, padded=n % 2 == 1, labels=labels), torch.zeros(4)) for n in range(5)]
    stages = cut(name, example=data[0][0], attention=attention)
    assert_close(trained(stages, data, "bp", loss=own_loss), plain(stages, data, own_loss))


def test_sequences_of_other_lengths():
    stages = cut("gpt2-tied")
    g = torch.Generator().manual_seed(1)
    data = [(words(g, length), words(g, length)) for length in (6, 9, 4, 16)]
    assert_close(trained(stages, data, "bp"), plain(stages, data))


@pytest.mark.parametrize("make", [partial(gpt2, dropout=0.3), partial(bert, dropout=0.3)], ids=["gpt2", "bert"])
def test_dropout_is_drawn_for_each_stage_and_batch(make):
    name = make.func.__name__
    stages, data = cut(name, make=make), batches(name)
    found = trained(stages, data, "pipedream", "threads")
    assert_equal(found, trained(stages, data, "pipedream"))
    without = trained(cut(name), data, "pipedream")
    assert not any(torch.equal(found[n], p) for n, p in without.items() if "weight" in n)


def test_the_model_is_as_it_was():
    model = gpt2("eager")
    assert model.config.use_cache
    fw.split(model, 3, example=words(torch.Generator()), by="parameters")
    assert model.config.use_cache
    assert not torch.compiler.is_compiling()
    assert model(words(torch.Generator())).past_key_values is not None


def test_a_saved_model_is_loaded_by_transformers(tmp_path):
    stages, data = cut("gpt2-tied"), batches("gpt2-tied")
    trainer = fw.Trainer(stages, method="pipedream", loss=loss, optimizer=SGD, runtime="simulate", seed=0, threads=1)
    trainer.fit(data)
    trainer.model().save_pretrained(tmp_path)
    loaded = hf.GPT2LMHeadModel.from_pretrained(tmp_path, attn_implementation="eager")
    assert loaded.lm_head.weight is loaded.transformer.wte.weight
    assert torch.equal(loaded.eval()(data[0][0]).logits, trainer.model().eval()(data[0][0]).logits)
