"""The worked shapes: what linnet runs there, and what its kernels then carry out.

A case is a command of the program. Of a kernel it launches, a line says how many units of work the
launch has (64 tokens of a head, of block attention's forward pass 128 x 64 pairs, of its keys 64 x 64
pairs, of others a row or block), the bytes that must move, and what of the source is carried out how
often. Blocks, threads and shared memory come from the launch itself.
"""

from dataclasses import dataclass, field

BATCH, HEADS, TOKENS = 16, 12, 8192
HEAD_TOKENS = BATCH * HEADS * TOKENS
CHUNKS = HEAD_TOKENS // 64

SHAPE = ["--batch", str(BATCH), "--heads", str(HEADS), "--lengths", str(TOKENS), "--head-width", "64"]
ON_DEVICE = ["--device", "cuda", "--dtype", "bf16", "--runs", "1"]


def attention(*arguments, batch=BATCH):
    shape = ["--batch", str(batch), *SHAPE[2:]]
    return ["bench", "attention", *arguments, *shape, *ON_DEVICE]


CASES = {
    "linear": attention("linear", "--set", "normalizer=none"),
    "lavo": attention("lavo", "--set", "rank=64", "--set", "window=16"),
    "abc_mlp": attention("abc_mlp", "--set", "slots=64"),
    "abc_random": attention("abc_random", "--set", "slots=64"),
    "local": attention("local", "--set", "window=128", batch=4),
    "train": ["bench", "train", "recipes/bench/gpu_lm.yaml", "data.kind=text", "data.path=TEXT", "--device", "cuda",
              "--steps", "1"],
    "loss": ["bench", "loss", "--words", "50304", "--cutoffs", "10000", "--width", "768", "--tokens", "4096",
             "--dtype", "bf16", "--runs", "1",
             "--device", "cuda"],
}  # fmt: skip

# What tools/gpu_check profile calls the cases that it measures too.
MEASURED_AS = {"linear": "linear unnormalized", "lavo": "lavo", "abc_mlp": "abc_mlp", "local": "local"}

# Of every kernel. Loops: how often they go round; lines: how often what is on them is carried out.
LOOPS = [
    ("#pragma unroll 1 for (int i = 0; i < Part::kCount", 0),  # rows at an edge, re-weighted features
    ("on += kStep, at += step", 0),  # the same
    ("on += kStep)", 0),
    ("for (int base = from / 32 * 32", 2),
    ("square <= warp", 2.5),  # a triangle of 4 x 4 squares
    ("square <= tile.warp", 2.5),
    ("square = warp; square < tile.end_square()", 2.5),
    ("square < tile.end_square(); ++square) const LeftFragment weights =", 0),  # of a part of a chunk
    ("square < tile.end_square()", 4),
    ("square <= first; square += 16", 2.5),
    ("< M; i += 16", 4),
    ("for (int j = 0; j < D / 16; ++j)", 4),
    ("for (int i = 0; i < D / 16; ++i)", 4),
    ("quarter < kChunk / Part::kQuarter", 4),
    ("quarter = kChunk / Part::kQuarter - 1", 4),
    ("begin < chunk.length; begin = end", 0),  # of memories that see all tokens
    ("first < chunk.length; first = end", 0),
    ("on < threads / 2; on += step", 0),  # of uneven rows
    ("on < count; on += 32", 0),  # no mask
    ("part < parts; ++part", 0),  # of heads wider than 64
]
LINES = [
    ("FeatureMap::relu>{}", 0),
    ("FeatureMap::elu>{}", 0),
    ("FeatureMap::identity>{}", 0),
    ("unmap_rows<", 0),
    ("if (segments.begins != 0)", 0),
    ("if (segmented)", 0),
    ("keep_between(", 0),
    ("(own_columns >>", 0),  # no mask
    ("sum_segments(", 0),
    ("drops", 0),  # no dropout
    ("kept.draw(", 0),
    ("drop_outputs(", 0),
    ("sums.template complete", 0),  # of parts of features
    ("begin_edge<", 0),
    ("write_edge<", 0),
    ("clear_parts<", 0),  # of rows at an edge
    ("i += threads) visit", 0),  # of rows that do not lie in 16 bytes
    ("template walk<", 0),  # of chunks in which segments begin
    ("pass(own, crossed)", 0),
    (".fill(s", 0),  # of memories without codes
    ("expand_to(std::true_type{}, std::false_type{})", 0),  # of memories without codes
    ("block_max(-static_cast<float>(high)", 0),  # of a chunk whose logits rise
    ("proportions != nullptr", 0),
    ("forget(scales", 0),
    ("const uint32_t counts = begin(token, segment);", 0),  # of a further segment
    ("write_weights(logits, weights, scales.reference, begin, end)", 0),
    ("share_slots(", 0),  # of more than 64 slots
    ("add_slots(work.other", 0),  # of heads wider than 64
    ("if (work.adds)", 0),  # of more than 64 slots
    ("if (all.before != nullptr)", 0),
    ("value < 0 ? 0.0f : value", 0),  # relu squared
    ("value *= value", 0),
    ("value *= 2 * roots[", 0),
    ("__ballot_sync(~0u, key_valid(", 0),  # no mask
    ("kept_of_", 0),
    ("+= mine[", 0),  # no bias
    ("+= bias[", 0),
    ("!rows.counts(first + on)", 0),
    ("find_bias(", 0),
    ("add_diagonals(", 0),
    ("clear_pairs(", 0),
    ("store_pairs<", 0),
    ("clear_blind_rows", 0),
]


@dataclass
class Kernel:
    case: str
    name: str
    main: str  # what the statement of the main loop holds
    bytes: float
    units: float = CHUNKS
    loops: list = field(default_factory=list)
    lines: list = field(default_factory=list)
    streams: list = field(default_factory=list)  # as paths.stream_trips takes them


ROWS, WIDTH = 32 * 1024, 768  # of "train"
CHANNELS = [("i += threads * kCount", WIDTH / 256)]  # of a row, by a warp
EIGHT = [("i < begin + kTogether", 0)]  # at the end of an array, or where it does not begin on 16 bytes
WORDS, LOSSES = 50304, 4096  # of "loss"

# Without denominators: what makes them is left out.
UNNORMALISED = [
    ("add_corrections<", 0),
    ("sum_products<", 0),
    ("publish_rest(", 0),
    ("if (two_parts)", 0),
    ("if (normalised)", 0),
    ("a.division.divisor(x)", 0),
    ("shared.corrections", 0),
    ("mass += corrections[token]", 0),
]
# Of slots that are not divided by the sums of their weights: what makes gradients of those is left out.
SUMS = [
    ("publish_rest(", 0),
    ("spread_slots(shared.carried", 0),
    (".add_later(tile, dlogits)", 0.5),  # once, of two places
    ("shared.entropies[row] + 1", 0),
    ("both[", 0),
    ("floored[", 0),
    ("pack(surprises", 0),
    ("leave_sums(", 0),
    ("ones_of<true>(square == warp", 0),
    ("shared.surprises", 0),
    ("carry_means(", 0),
]
KERNELS = [
    Kernel("linear", "linear_attention_fast_sums<64, 64>", "step < steps", 256 * HEAD_TOKENS / 2, CHUNKS / 2,
           [("unroll unrolled for (int i = 0; i < Part::kCount", 4)], UNNORMALISED),
    Kernel("linear", "linear_attention_fast_forward<64, 64, false>", "token < end", 512 * HEAD_TOKENS,
           loops=[("unroll unrolled for (int i = 0; i < Part::kCount", 2)], lines=UNNORMALISED),
    Kernel("linear", "linear_attention_fast_queries<64, false>", "token < end", 640 * HEAD_TOKENS,
           loops=[("unroll unrolled for (int i = 0; i < Part::kCount", 2)], lines=UNNORMALISED),
    Kernel("linear", "linear_attention_fast_keys<64, false>", "step < steps", 768 * HEAD_TOKENS,
           loops=[("unroll unrolled for (int i = 0; i < Part::kCount", 2), ("token < until", 0),
                  ("fast_keys.cu", 2.5)], lines=UNNORMALISED),
    Kernel("lavo", "lavo_pass_forward<64, false>", "number < last", 652 * HEAD_TOKENS,
           loops=[("square = begin", 2)]),
    Kernel("lavo", "orthogonal_memory_fast_backward<64, 2>", "number >= first", 648 * HEAD_TOKENS),
    Kernel("lavo", "lavo_pass_window_backward<64>", "number >= from", 1032 * HEAD_TOKENS,
           loops=[("square = max(sight", 2), ("square = max(first", 1)]),
    Kernel("abc_mlp", "slot_attention_fast_forward<64, 64, true>", "token < scan.end", 640 * HEAD_TOKENS),
    Kernel("abc_mlp", "slot_attention_fast_queries<64>", "token < scan.end", (6 * 64 + 4 * 64 + 6 * 64) * HEAD_TOKENS),
    Kernel("abc_mlp", "slot_attention_fast_keys<64>", "token >= scan.begin", (6 * 64 + 6 * 64 + 8 * 64) * HEAD_TOKENS),
    Kernel("abc_random", "slot_attention_given_forward<true>", "token < scan.end", 640 * HEAD_TOKENS),
    Kernel("abc_random", "slot_attention_given_queries", "token < scan.end", (6 * 64 + 4 * 64 + 6 * 64) * HEAD_TOKENS),
    Kernel("abc_random", "slot_attention_given_keys", "token >= scan.begin", (6 * 64 + 6 * 64 + 8 * 64) * HEAD_TOKENS,
           lines=SUMS),
    Kernel("local", "block_attention_fast_forward<64, 2>", "n < keys.count", 516 * HEAD_TOKENS / 4, 4 * CHUNKS / 8,
           lines=[("read_tile<", 3 / 4)]),  # a warp's queries see three tiles of their block's four
    Kernel("local", "block_attention_fast_queries<64>", "i < to.tiles_each", 776 * HEAD_TOKENS / 4, CHUNKS / 4,
           [("n < stream.count", 3), ("column < seen.end", 3)],  # a warp looks at 9 squares of 12,
           [("if (edge) hide<", 2 / 9)]),  # and at 2 edges of what it sees
    Kernel("local", "block_attention_fast_keys<64>", "n < stream.count", 776 * HEAD_TOKENS / 4,
           3 * CHUNKS / 4, [("column < seen.end", 3)], [("if (edge) hide<", 2 / 9)]),
    Kernel("train", "for_each_eight<Scale<bf16> >", "", 4 * ROWS * WIDTH, ROWS * WIDTH / 2048, EIGHT),
    Kernel("train", "residual_norm_rows<bf16, false>", "", 8 * ROWS * WIDTH, ROWS / 4, CHANNELS),
    Kernel("train", "norm_rows<bf16>", "", 4 * ROWS * WIDTH, ROWS / 4, CHANNELS),
    Kernel("train", "norm_backward_rows<bf16, false>", "", 8 * ROWS * WIDTH, ROWS / 4, CHANNELS),
    Kernel("train", "norm_parameter_sums<bf16>", "", 4 * ROWS * WIDTH, ROWS * WIDTH / 4096, streams=[
        ("r += kRowThreads", 16, 4)]),
    Kernel("loss", "cross_entropy_rows<bf16>", "", 4 * LOSSES * WORDS, LOSSES,
           [("w < blockDim.x / 32", 2), ("i += threads * kCount", WORDS / 2048), ("gradient && c < classes", 0)]),
]  # fmt: skip
