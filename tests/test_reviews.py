"""IMDb's reviews: reading them, the vocabulary and its file, the network for them, and training."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import freewheel as fw
from command_line import freewheel
from freewheel import data, models

TRAIN = [
    ("A film.<br /><br />A good film!", 0),
    ("Bad; it isn't good", 0),
    ("A film", 0),
    ("A very, very good film", 1),
    ("", 1),
]
TEST = [("good film, unheard of", 1), ("bad", 0)]


def write(root: Path, train=TRAIN, test=TEST, *, folder: str = "imdb") -> Path:
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", train), ("test", test)):
        lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
        (root / folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return root


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """The user's cache folder, which no test may take from another."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "freewheel"


def text_of(loaded: data.Data, row: torch.Tensor) -> list[str]:
    return [loaded.vocabulary[i] for i in row.tolist()]


# -- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["imdb", "."], ids=["in imdb", "itself"])
def test_reviews_become_their_last_words_with_padding_in_front(tmp_path, folder):
    loaded = data.load("imdb", root=write(tmp_path / "root", folder=folder), steps=4, batch_size=2)
    assert (loaded.name, loaded.classes, loaded.in_shape) == ("imdb", 2, (4,))
    # a 4, film 4, good 3, very 2, and once each: bad, isn't, it
    expected = ("<padding>", "<unknown>", "a", "film", "good", "very", "bad", "isn't", "it")
    assert loaded.vocabulary == expected
    none, unknown = loaded.vocabulary[:2]
    # the classes take turns: of unfavourable ones there is one more
    assert loaded.train.labels.tolist() == [0, 1, 0, 1, 0]
    assert [text_of(loaded, row) for row in loaded.train.images] == [
        ["film", "a", "good", "film"],
        ["very", "very", "good", "film"],
        ["bad", "it", "isn't", "good"],
        [none] * 4,
        [none, none, "a", "film"],
    ]
    assert loaded.test.labels.tolist() == [0, 1]
    assert [text_of(loaded, row) for row in loaded.test.images] == [
        [none, none, none, "bad"],
        ["good", "film", unknown, unknown],
    ]


def test_a_small_vocabulary_has_the_most_frequent_words(tmp_path):
    loaded = data.load("imdb", root=write(tmp_path), steps=3, words=5)
    assert loaded.vocabulary == ("<padding>", "<unknown>", "a", "film", "good")
    assert text_of(loaded, loaded.train.images[2]) == ["<unknown>", "<unknown>", "good"]


def test_limits_leave_both_classes(tmp_path):
    rows = [("bad film", 0)] * 6 + [("good film", 1)] * 6
    loaded = data.load("imdb", root=write(tmp_path, rows, rows), train_limit=4, test_limit=2)
    assert (loaded.train.labels.tolist(), loaded.test.labels.tolist()) == ([0, 1, 0, 1], [0, 1])
    assert loaded.train.images.shape == (4, 200)


GOOD = b'{"text": "x", "label": 1}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD + b"\n{text: 1}\n", "train.jsonl, line 3, is not JSON in UTF-8 (Expecting property name"),
        (GOOD + b'{"text": "\xff", "label": 1}', "train.jsonl, line 2, is not JSON in UTF-8 ('utf-8' codec"),
        (GOOD + b'["x", 1]', "train.jsonl, line 2, must be an object with a text and a label, got ['x', 1]: write"),
        (b'{"review": "x", "label": 1}', "train.jsonl, line 1, must be an object with a text and a label"),
        (b'{"text": null, "label": 1}', "train.jsonl, line 1, has the text None: a text is a string"),
        (b'{"text": "x", "label": 2}', "train.jsonl, line 1, has the label 2: labels are 0 (unfavourable) and 1"),
        (b'{"text": "x", "label": true}', "train.jsonl, line 1, has the label True: labels are 0"),
        (b'{"text": "x", "label": "pos"}', "train.jsonl, line 1, has the label 'pos': labels are 0"),
        (b" \n\n", "train.jsonl is empty: put reviews there, one a line, such as {"),
    ],
)
def test_a_bad_line_is_named(tmp_path, content, message):
    write(tmp_path)
    (tmp_path / "imdb" / "train.jsonl").write_bytes(content)
    with pytest.raises(ValueError) as caught:
        data.load("imdb", root=tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda root: data.load("imdb"), ValueError, "pass root=, the folder that holds imdb/train.jsonl and"),
        (lambda root: data.load("imdb", root=root / "no"), FileNotFoundError, "no is not a folder: pass the one"),
        (lambda root: data.load("imdb", root=root), FileNotFoundError, "test.jsonl is missing: put reviews there"),
        (lambda root: data.load("imdb", root=root, steps=0), ValueError, "steps=0: give 1 or more"),
        (lambda root: data.load("imdb", root=root, words=2), ValueError, "words=2: give 3 or more"),
        (
            lambda root: data.load("text", root=root, words=9),
            ValueError,
            "words is only for 'imdb': leave it out for 'text'",
        ),
        (lambda root: data.load("imdb", root=root, augment=True), ValueError, "'imdb' has no augmentation"),
    ],
)
def test_missing_files_and_bad_arguments_are_refused_in_one_line(tmp_path, call, error, message):
    (write(tmp_path) / "imdb" / "test.jsonl").unlink()
    with pytest.raises(error) as caught:
        call(tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# -- the vocabulary's file --------------------------------------------------------------------------------------------


def kept(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*vocabulary-*")) if folder.exists() else []


@pytest.fixture
def counted(monkeypatch) -> list[int]:
    """Grows with each vocabulary that is made."""
    calls: list[int] = []

    def counting(texts, size):
        calls.append(size)
        return made(texts, size)

    from freewheel.data import _reviews

    made = _reviews.most_frequent
    monkeypatch.setattr(_reviews, "most_frequent", counting)
    return calls


def test_a_vocabulary_is_made_once_for_each_source_and_size(tmp_path, counted, cache):
    root = write(tmp_path / "root")
    first = data.load("imdb", root=root).vocabulary
    assert data.load("imdb", root=root, steps=7, seed=3).vocabulary == first
    assert (len(counted), len(kept(root)), kept(cache)) == (1, 1, [])
    data.load("imdb", root=root, words=4)
    assert (len(counted), len(kept(root))) == (2, 2)
    write(root, [*TRAIN, ("bad bad bad bad bad", 0)])
    changed = data.load("imdb", root=root).vocabulary
    assert (len(counted), changed[2], changed[3:5]) == (3, "bad", ("a", "film"))
    write(root, test=[("only to test", 0)])
    assert data.load("imdb", root=root).vocabulary == first
    assert len(counted) == 3


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"source": "another", "vocabulary": ["a"]}', '{"vocabulary": 1}'])
def test_a_damaged_file_is_made_again(tmp_path, counted, damage):
    root = write(tmp_path / "root")
    first = data.load("imdb", root=root).vocabulary
    (file,) = kept(root)
    whole = file.read_bytes()
    file.write_text(damage)
    assert data.load("imdb", root=root).vocabulary == first
    assert (len(counted), kept(root), file.read_bytes()) == (2, [file], whole)


def test_where_nothing_can_be_written_it_lies_in_the_cache_folder(tmp_path, counted, cache):
    root = write(tmp_path / "root")
    first = data.load("imdb", root=root).vocabulary
    (file,) = kept(root)
    file.unlink()
    file.mkdir()  # no file can take its place
    assert data.load("imdb", root=root).vocabulary == first
    assert [path.name for path in kept(cache)] == [file.name]
    assert data.load("imdb", root=root).vocabulary == first
    assert (len(counted), kept(root)) == (2, [file])


def test_without_any_place_for_it_the_vocabulary_is_made_every_time(tmp_path, counted, cache):
    root = write(tmp_path / "root")
    first = data.load("imdb", root=root).vocabulary
    (file,) = kept(root)
    file.unlink()
    file.mkdir()
    cache.parent.write_text("a file where the folder would be")
    assert [data.load("imdb", root=root).vocabulary for _ in range(2)] == [first, first]
    assert len(counted) == 3


# -- the network ------------------------------------------------------------------------------------------------------


def test_the_network_is_that_of_plain_layers():
    torch.manual_seed(0)
    net = models.build("lstm", num_classes=2, in_shape=(6,), vocabulary=9, hidden=5).double()
    x = torch.tensor([[0, 0, 3, 8, 1, 2], [4, 4, 5, 6, 7, 1]])
    plain = nn.LSTM(5, 5, num_layers=2, batch_first=True).double()
    names = {f"{name}_l{i - 1}": p for i in (1, 2) for name, p in _layer(net, i).items()}
    plain.load_state_dict(names)
    embedded = net.get_submodule("embedding").weight[x]
    assert not embedded[0, :2].any()  # padding is nothing
    out, _ = plain(embedded)
    fc = net.get_submodule("fc")
    assert torch.allclose(net(x), out[:, -1] @ fc.weight.T + fc.bias, rtol=0, atol=1e-12)


def _layer(net: nn.Module, number: int) -> dict[str, torch.Tensor]:
    state = net.get_submodule(f"layer{number}.layer").state_dict()
    return {name.removesuffix("_l0"): value for name, value in state.items()}


def test_a_vocabulary_is_for_whole_numbers():
    with pytest.raises(ValueError, match=r"vocabulary=9 is for sequences of whole numbers: give in_shape=\(steps,\)"):
        models.build("gru", in_shape=(8, 8), vocabulary=9)
    with pytest.raises(ValueError, match="vocabulary=0: give 1 or more"):
        models.build("gru", in_shape=(8,), vocabulary=0)
    with pytest.raises(TypeError, match="model 'resnet-20' has no option 'vocabulary'"):
        models.build("resnet-20", vocabulary=9)


# -- training ---------------------------------------------------------------------------------------------------------


def many(count: int, seed: int) -> list[tuple[str, int]]:
    """Reviews that one word tells apart, in the middle of others."""
    draw = random.Random(seed)
    rows = []
    for i in range(count):
        around = [draw.choice(("film", "story", "scene", "actor", "plot")) for _ in range(draw.randrange(2, 6))]
        around.insert(draw.randrange(len(around)), "dull" if i % 2 == 0 else "fine")
        rows.append((" ".join(around), i % 2))
    return rows


@pytest.mark.parametrize(
    "method",
    [fw.method("bp"), fw.method("pipedream"), fw.method("fdg"), fw.method("asyncfgd"), fw.method("asyncfgd", steps=2)],
    ids=["bp", "pipedream", "fdg", "asyncfgd", "asyncfgd in time"],
)
def test_threads_train_it_as_simulate_does(tmp_path, method):
    loaded = data.load("imdb", root=write(tmp_path, many(20, 0), many(4, 1)), steps=6, batch_size=5)
    trained = []
    for runtime in ("simulate", "threads"):
        torch.manual_seed(0)
        net = models.build("lstm", num_classes=2, in_shape=(6,), vocabulary=len(loaded.vocabulary), hidden=4)
        before = [p.detach().clone() for p in net.parameters()]
        stages = fw.split(net, at=["layer1", "layer2"])
        adam = partial(torch.optim.Adam, lr=1e-2)
        trainer = fw.Trainer(stages, method=method, loss=F.cross_entropy, optimizer=adam, runtime=runtime, threads=1)
        loaded.train.load_state_dict({"epoch": 0})
        trainer.fit(loaded.train, 2, progress=False)
        trained.append([p.detach() for p in trainer.model().parameters()])
        moved = [not torch.equal(a, b) for a, b in zip(before, trained[-1])]
        assert all(moved)
        assert not trained[-1][0][0].any()  # the padding stays nothing
    assert all(torch.equal(a, b) for a, b in zip(*trained, strict=True))


def test_the_command_trains_the_papers_network_until_it_knows(tmp_path):
    root = write(tmp_path / "root", many(300, 0), many(60, 1))
    file = tmp_path / "run.json"
    command = (
        f"train --data imdb --data-root {root} --steps 6 --epochs 2 --stages 2 --split parameters --schedule constant"
    )
    result = freewheel(*command.split(), "--no-compare", "--json", str(file))
    assert result.exit_code == 0, result.output
    run = json.loads(file.read_text())
    assert run["model"]["name"] == "lstm"
    assert run["optimizer"] == {"name": "adam", "lr": 1e-3, "weight_decay": 0.0}
    assert "300 sequences to train, 60 to test, 6, 2 classes, batches of 75" in result.output
    words = 2 + 7
    layers = 2 * (2 * 4 * 256 * 256 + 2 * 4 * 256)
    assert run["model"]["parameters"] == words * 256 + layers + 2 * 256 + 2
    assert run["score"]["metric"] > 0.9


def test_a_width_is_for_recurrent_networks():
    result = freewheel("train", "--hidden", "64")
    assert (result.exit_code, result.output) == (
        2,
        "error: --hidden 64: digits-cnn has none, it is for rnn, gru, lstm\n",
    )
