"""Streams of random numbers are pure functions of a seed and a purpose."""

import json
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from microtrain import random as mtr


@pytest.fixture(autouse=True)
def _keep_the_stream():
    before = mtr.get_rng_state()
    yield
    mtr.set_rng_state(before)


def first_words(*arguments):
    return mtr.generator(*arguments).bit_generator.random_raw(3).tolist()


def test_golden_words():
    """The streams of earlier versions: changing one changes every run made with it."""
    assert first_words(0, "shuffle", 0) == GOLDEN["shuffle"]
    assert first_words(-1, "split") == GOLDEN["split"]


GOLDEN = {
    "shuffle": [9137604490114450909, 3193518918669664156, 15909713708310499534],
    "split": [7110768743362976385, 10812965813972427352, 15381317897659549752],
}


@given(
    st.lists(
        st.tuples(
            st.integers(-3, 2**70),
            st.sampled_from(["split", "shuffle", "noise"]),
            st.lists(st.integers(0, 2**33), max_size=3),
        ),
        min_size=2,
        max_size=8,
        unique_by=repr,
    )
)
def test_equal_arguments_give_equal_streams_and_different_ones_do_not(arguments):
    streams = [first_words(seed, purpose, *indices) for seed, purpose, indices in arguments]
    assert streams == [first_words(seed, purpose, *indices) for seed, purpose, indices in arguments]
    assert len({tuple(words) for words in streams}) == len(arguments)


@given(
    st.integers(-3, 2**70),
    st.lists(st.integers(0, 2**33), max_size=3),
    st.integers(0, 9),
)
def test_a_brief_generator_starts_as_a_fresh_one_whatever_was_drawn_before(seed, indices, draws):
    before = mtr.get_rng_state()
    mtr.brief_generator(seed, "before").integers(0, 9, draws, dtype=np.uint8)
    brief, fresh = (make(seed, "x", *indices) for make in (mtr.brief_generator, mtr.generator))
    for draw in ("permutation", "standard_normal", "random"):
        assert getattr(brief, draw)(5).tolist() == getattr(fresh, draw)(5).tolist()
    assert brief.bit_generator.random_raw() == fresh.bit_generator.random_raw()
    assert mtr.get_rng_state() == before  # it is not one of the stream of manual_seed


@pytest.mark.parametrize(
    "one, other",
    [
        ((0, "a"), (0, "a", 0)),  # a SeedSequence pads with zeros: these would be equal
        ((1, "a", 0), (1, "a", 0, 0)),
        ((0, "a", 2**32), (0, "a", 0, 1)),  # and cuts large integers into words
        ((1, "a", 23), (1, "a", 2, 3)),
    ],
)
def test_short_and_long_argument_lists_do_not_collide(one, other):
    assert first_words(*one) != first_words(*other)


def test_numpy_integers_name_the_same_stream():
    assert first_words(np.int64(5), "a", np.uint8(1)) == first_words(5, "a", 1)


@pytest.mark.parametrize("seed", [1.0, "1", None, True, np.True_])
def test_a_seed_is_an_integer(seed):
    with pytest.raises(TypeError, match="seed must be an integer, got"):
        mtr.generator(seed, "split")
    with pytest.raises(TypeError, match="seed must be an integer, got"):
        mtr.manual_seed(seed)


def test_manual_seed_restarts_the_one_stream():
    returned = mtr.manual_seed(7)
    assert returned is mtr.default_generator()
    assert mtr.initial_seed() == 7
    first = mtr.default_generator().random(5)
    assert not np.array_equal(first, mtr.default_generator().random(5))
    mtr.manual_seed(7)
    np.testing.assert_array_equal(first, mtr.default_generator().random(5))
    assert not np.array_equal(first, mtr.manual_seed(8).random(5))


def test_each_thread_has_its_own_stream_which_starts_at_seed_0():
    """In-process ranks are threads: what one draws must not move another's stream."""
    mtr.manual_seed(3)
    seen = {}

    def rank():
        seen["fresh"] = (mtr.initial_seed(), mtr.default_generator().random(2).tolist())
        mtr.manual_seed(99)
        mtr.default_generator().random(10)

    thread = threading.Thread(target=rank)
    thread.start()
    thread.join()
    assert mtr.initial_seed() == 3
    np.testing.assert_array_equal(mtr.default_generator().random(2), mtr.manual_seed(3).random(2))
    assert seen["fresh"] == (0, mtr.manual_seed(0).random(2).tolist())


def test_the_default_stream_is_no_stream_of_generator_users():
    assert mtr.manual_seed(0).random() != mtr.generator(0, "shuffle").random()


@pytest.mark.parametrize("draws", [0, 1, 2, 3, 4, 5, 8])
def test_state_survives_json_and_continues_exactly(draws):
    stream = mtr.manual_seed(11)
    stream.random(draws)
    stream.integers(0, 10, dtype=np.int32)  # leaves half a word in the generator
    saved = json.dumps(mtr.get_rng_state())
    expected = [stream.integers(0, 1000, dtype=np.int32), *stream.standard_normal(7)]
    mtr.manual_seed(12)
    mtr.set_rng_state(json.loads(saved))
    again = mtr.default_generator()
    assert mtr.initial_seed() == 11
    assert [again.integers(0, 1000, dtype=np.int32), *again.standard_normal(7)] == expected


def test_a_saved_state_does_not_follow_the_stream():
    mtr.manual_seed(0)
    state = mtr.get_rng_state()
    text = json.dumps(state)
    mtr.default_generator().random(100)
    assert json.dumps(state) == text


def damaged(**changes):
    return {**mtr.get_rng_state(), **changes}


@pytest.mark.parametrize(
    "damage",
    [
        dict,
        list,
        lambda: damaged(seed="0"),
        lambda: damaged(bit_generator="PCG64"),
        lambda: damaged(state={"counter": [0, 0, 0], "key": [0, 0]}),
        lambda: damaged(state={"counter": [0, 0, 0, -1], "key": [0, 0]}),
        lambda: damaged(state={"counter": [0, 0, 0, "x"], "key": [0, 0]}),
        lambda: damaged(buffer=[0]),
        lambda: damaged(buffer_pos=77),
        lambda: damaged(buffer_pos=None),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(damage):
    mtr.manual_seed(4)
    before = mtr.get_rng_state()
    with pytest.raises(ValueError, match="not a state from get_rng_state"):
        mtr.set_rng_state(damage())
    assert mtr.get_rng_state() == before
