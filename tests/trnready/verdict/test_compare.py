"""The arithmetic of the verdict against plain definitions and by its laws."""

from __future__ import annotations

import math

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trnready.verdict.compare import bit_equal, compare, difference, greedy, ratios, rms, without

LOGITS = hnp.arrays(
    np.float32, st.tuples(st.integers(1, 6), st.integers(2, 8)), elements=st.floats(-50, 50, width=32)
)


def test_rms_is_taken_over_the_vocabulary():
    assert rms(np.array([[3.0, -4.0], [1.0, 1.0]], dtype=np.float32)) == pytest.approx([math.sqrt(12.5), 1.0])


def test_difference_does_not_overflow_in_float32():
    huge = np.full((1, 2), 3e38, dtype=np.float32)
    assert difference(huge, -huge) == pytest.approx([6e38])


def test_a_step_without_noise_is_perfect_when_equal_and_hopeless_when_not():
    assert ratios(np.array([0.0, 0.5, 0.5]), np.array([0.0, 0.0, 0.25])).tolist() == [0.0, math.inf, 2.0]


def test_noise_too_small_to_divide_by_counts_as_none():
    assert ratios(np.array([1e300]), np.array([5e-324])).tolist() == [math.inf]


@given(LOGITS)
def test_greedy_takes_what_torch_takes(logits):
    assert list(greedy(logits, ())) == torch.from_numpy(logits).argmax(-1).tolist()


@given(LOGITS, st.data())
def test_greedy_never_takes_a_token_held_back(logits, data):
    vocabulary = logits.shape[1]
    held_back = data.draw(st.sets(st.integers(0, vocabulary + 3), max_size=vocabulary - 1))
    chosen = greedy(logits, sorted(held_back))
    if len(held_back & set(range(vocabulary))) < vocabulary:
        assert not set(chosen) & held_back


def test_holding_back_leaves_the_logits_as_they_were():
    logits = np.array([[1.0, 2.0]], dtype=np.float32)
    assert without(logits, [1]).tolist() == [[1.0, -math.inf]]
    assert logits.tolist() == [[1.0, 2.0]]


def test_bits_tell_zeros_apart():
    zero = np.zeros((1, 2), dtype=np.float32)
    assert bit_equal(zero, zero.copy())
    assert not bit_equal(zero, -zero)
    assert not bit_equal(zero, zero.reshape(2, 1))


@given(LOGITS)
def test_equal_logits_score_nothing(logits):
    result = compare(logits, logits.copy(), np.ones(len(logits)), greedy(logits, ()), ())
    assert (result.score, result.worst, result.bit_equal) == (0.0, 0.0, True)
    assert (result.first_divergence, result.margin) == (None, None)


@given(LOGITS, st.floats(0.5, 100))
def test_the_score_grows_with_the_distance_in_units_of_noise(logits, factor):
    noise = np.full(len(logits), 0.25)
    moved = (logits.astype(np.float64) + 0.25 * factor).astype(np.float32)
    result = compare(moved, logits, noise, greedy(moved, ()), ())
    assert result.score == pytest.approx(factor, rel=1e-3, abs=1e-3)


def test_the_score_is_the_median_and_the_worst_step_is_kept():
    reference = np.zeros((3, 2), dtype=np.float32)
    device = np.array([[0, 0], [1, 1], [9, 9]], dtype=np.float32)
    result = compare(device, reference, np.ones(3), (0, 0, 0), ())
    assert (result.score, result.worst, result.ratios) == (1.0, 9.0, (0.0, 1.0, 9.0))


def test_the_first_divergence_comes_with_the_gap_between_the_cpus_two_best():
    reference = np.array([[0, 5, 1], [4, 3.5, 9], [1, 0, 0]], dtype=np.float32)
    result = compare(reference, reference, np.ones(3), (1, 1, 2), held_back=[2])
    assert result.tokens_reference == (1, 0, 0)
    assert (result.first_divergence, result.margin) == (1, 0.5)


def test_with_every_other_token_held_back_there_is_no_gap_to_tell():
    reference = np.array([[1, 2]], dtype=np.float32)
    assert compare(reference, reference, np.ones(1), (1,), held_back=[1]).margin is None
