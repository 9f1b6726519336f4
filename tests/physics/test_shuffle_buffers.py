"""How far shuffle buffers move samples, by hand and by their laws; and the reads that Levanter's
shuffles were measured with."""

import numpy as np
import pytest

from simshuffle.workload.orders.buffers import HuggingFace, TfData
from simshuffle.workload.orders.levanter import Levanter
from simshuffle.workload.orders.order import Readers, ShardedSet
from simshuffle.workload.orders.shuffle_buffers import (
    shuffle_by_replacement,
    shuffle_in_batches,
    shuffle_in_buffer,
)

ALONE = Readers(1, 1, 1, batch_size=8)


def shards(count, samples):
    return ShardedSet(np.full(count, samples), np.full(count, 1.0))


class FirstPlace:
    """Draws the first place of a buffer, always."""

    def randbytes(self, count):
        return bytes(count)


def test_a_buffer_of_webdataset_by_hand():
    # 0 1 in; 0 out, 1 left; 2 3 in; 1 out, 3 2 left; 4 in; 3 out, 4 2 left; 5 in; 4 out; then 5, 2
    assert shuffle_in_buffer(list(range(6)), 3, 2, FirstPlace()).tolist() == [0, 1, 3, 4, 5, 2]
    # without a buffer nothing moves, and the first comes at once
    assert shuffle_in_buffer(list(range(6)), 0, 100, FirstPlace()).tolist() == list(range(6))


def test_a_sample_leaves_a_full_buffer_with_the_same_chance_in_each_draw():
    size, count = 50, 200_000
    out = shuffle_by_replacement(np.arange(count), size, np.random.default_rng(0))
    left = np.argsort(out)[size : count - 20 * size]
    came = np.arange(size, count - 20 * size) - size + 1
    wait = left - came
    assert wait.min() == 0  # so nothing is handed out more than size - 1 places before its own
    assert wait.mean() == pytest.approx(size - 1, rel=0.02)
    assert wait.std() == pytest.approx(np.sqrt(size * (size - 1)), rel=0.02)
    assert np.mean(wait == 0) == pytest.approx(1 / size, rel=0.05)


def test_half_of_a_buffer_of_hugging_face_stays():
    size, count = 50, 100_000
    made = HuggingFace(kind="hugging_face", buffer_size=size, max_buffer_input_shards=1)
    out = made.epoch(shards(1, count), ALONE, 0, 0).sample
    # the buffer is shuffled when 50 are in, then after every 25 that come; 25 leave each time
    came = np.maximum(0, np.arange(count) - size) // 25 + (np.arange(count) >= size)
    stayed = np.argsort(out) // 25 - came
    assert stayed.min() == 0
    kept = stayed[size : count // 2]
    assert [np.mean(kept >= rounds) for rounds in (1, 2, 3)] == pytest.approx(
        [1 / 2, 1 / 4, 1 / 8], rel=0.05
    )


def test_a_buffer_of_ray_by_hand():
    class FirstBecomesLast:
        def permutation(self, samples):
            return np.roll(samples, -1)

    blocks = [np.arange(first, first + 4) for first in range(0, 16, 4)]
    # at 8, 1.5 times 4 and more, 1 to 7 come out and 0 stays, fewer than half of 4; it comes behind
    # the next two blocks, which are then enough again; 8 is left for the end
    out = shuffle_in_batches(blocks, 1, 4, FirstBecomesLast()).tolist()
    assert out == [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 0, 8]


def test_files_of_tf_data_are_read_in_turn():
    made = TfData(kind="tf_data", buffer_size=1, cycle_length=2, block_length=2)
    data = ShardedSet(np.array([3, 5, 3]), np.ones(3))
    # the first file ends within its turn, so the third takes its place in the next round
    files = data.shard_of(made._interleave_files(data, [0, 1, 2])).tolist()
    assert files == [0, 0, 1, 1, 0, 1, 1, 2, 2, 1, 2]


# ---------------------------------------------------------------------------------- published reads

# marin-community/marin issue 2917: 2062 steps of 512 samples of 1024 tokens; a chunk has 256 Ki
SAMPLES = 2062 * 512
CHUNK = 256
INDEX_BYTES = 512 * 16 + 4  # of a Zarr shard of 512 chunks
READS = {"full": 1_932_354, "era": 4_899, "block": 9_137}
BYTES = {"full": 621_914_747_700, "era": 2_608_161_636, "block": 2_642_644_048}


def chunk_reads(shuffle):
    """Chunks that are read if those of an era or a window are kept until it ends, and without such
    one for each sample."""
    made = Levanter(kind="levanter", shuffle=shuffle, era_length=1024, window_blocks=4)
    order = made.epoch(shards(1, SAMPLES), Readers(1, 1, 1, 512), 42, 0).sample
    held = 1024 if shuffle != "full" else 1
    windows = np.arange(SAMPLES) // held
    return len(np.unique(windows * SAMPLES + order // made.block))


def test_training_of_the_published_runs_reads_each_chunk_once_or_for_each_sample():
    assert {shuffle: chunk_reads(shuffle) for shuffle in READS} == {
        "full": SAMPLES,
        "era": 4124,
        "block": 4124,
    }
    # each read is of a chunk, or of the index of its shard: at most two for each chunk
    assert SAMPLES < READS["full"] < 2 * SAMPLES
    assert 4124 < READS["era"] < 2 * 4124
    # `block` reads an index for each chunk; validation and prefetching, which are not published,
    # read the tenth that is missing
    assert 2 * 4124 / READS["block"] == pytest.approx(0.903, abs=0.001)


def test_published_bytes_say_that_era_and_block_read_the_same_chunks():
    indices = READS["full"] - SAMPLES
    chunk_bytes = (BYTES["full"] - indices * INDEX_BYTES) / SAMPLES
    assert 0.5 * 4 * CHUNK * 1024 < chunk_bytes < 4 * CHUNK * 1024  # tokens, compressed
    chunks = {
        shuffle: (BYTES[shuffle] - READS[shuffle] * INDEX_BYTES) / (chunk_bytes - INDEX_BYTES)
        for shuffle in ("era", "block")
    }
    assert chunks == pytest.approx({"era": 4473, "block": 4473}, abs=0.5)
    assert READS["block"] / chunks["block"] == pytest.approx(2, abs=0.05)
