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


TRAIN = ["bench", "train", "recipes/bench/gpu_lm.yaml", "data.kind=text", "data.path=TEXT", "--device", "cuda"]
TRAIN += ["--steps", "1"]
CASES = {
    "linear": attention("linear", "--set", "normalizer=none"),
    "gated_linear": attention("gated_linear"),
    "lavo": attention("lavo", "--set", "rank=64", "--set", "window=16"),
    "abc_mlp": attention("abc_mlp", "--set", "slots=64"),
    "abc_random": attention("abc_random", "--set", "slots=64"),
    "local": attention("local", "--set", "window=128", batch=4),
    "performer": attention("performer"),
    "conv": ["bench", "conv", "--taps", "63", *SHAPE, *ON_DEVICE],
    "train": TRAIN,
    "train_dropout": [*TRAIN, "model.positions=rotary", "model.dropout=0.1"],
    "deltanet": attention("deltanet", "--set", "preset=gated"),
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
    ("visit_eight<float>(", 0),  # of arrays in bf16
    ("template walk<", 0),  # of chunks in which segments begin
    ("pass(own, crossed)", 0),
    (".fill(s", 0),  # of memories without codes
    ("expand_to(std::true_type{}, std::false_type{})", 0),  # of memories without codes
    ("block_max(-static_cast<float>(high)", 0),  # of a chunk whose logits rise
    ("proportions != nullptr", 0),
    ("forget(scales", 0),
    ("const uint32_t counts = begin(token, segment);", 0),  # of a further segment
    ("copy(copies, token, segment);", 0),
    ("const uint32_t counts = begin_logits(token, segment);", 0),
    ("begin_logits(copies, shared, a, work, token, segment);", 0),
    ("write_weights(logits, weights, scales.reference, begin, end)", 0),
    ("share_slots(", 0),  # of more than 64 slots
    ("add_slots(work.other", 0),  # of heads wider than 64
    ("use_empty_slots(", 0),  # empty slots are left out
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
PARAMETERS = 85.8e6  # of "train"
SPLITS = 32  # of its tokens, for the gradient of its table of 256 rows
FEATURES = 128  # of "performer"
ROW = [("i += threads * kCount", 1)]  # of so many features, or fewer channels, by a warp
NO_MASK = [("mask == nullptr ||", 0)]
DRAWS = [("drops", 1), ("kept.draw(", 1)]

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
    ("entropies[at.half] + 1", 0),
    ("both[", 0),
    ("floored[", 0),
    ("pack(surprises", 0),
    ("leave_sums(", 0),
    ("ones_of<true>(square == warp", 0),
    ("shared.surprises", 0),
    ("carry_means(", 0),
]
# Of a decay per channel: the keys or queries of other warps, and what only edges and anchors need.
CHANNEL_LOOPS = [
    ("square = warp - 1", 1.5),
    ("square < warp", 1.5),
    ("square = warp + 1", 1.5),
    ("square > warp", 1.5),
    ("unroll 2 for (int from", 2),
    ("unroll 1 for (int from", 4),
]
CHANNEL_LINES = [
    ("const int64_t token = keys.begin + t", 0),
    ("if (keys.inside(token, 2 * lane))", 0),
    ("begins_segment(", 0),
    ("if (anchored)", 1 / 8),
    ("store_anchor(token)", 1 / 8),
]
# Of the delta rule's scans: what the warps that prepare chunks carry out is left out.
PREPARES = [("make_triangles<backward>", 0), ("begin(next)", 0), ("make_gates(next, lane)", 0)]
# Of filters of 63 taps: tiles before the row, rows of documents.
BEFORE = [("i < kTile * kColumns / 8 / kThreads", 0), ("part < 16 * kColumns / 8", 0)]
DOCUMENTS = [("left = cut(", 0), ("limits_of(", 0), ("limits.cut(", 0)]
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
    Kernel("gated_linear", "linear_attention_channel_forward", "token < time", 768 * HEAD_TOKENS,
           loops=CHANNEL_LOOPS, lines=CHANNEL_LINES),
    Kernel("gated_linear", "linear_attention_channel_queries", "token < time", 1184 * HEAD_TOKENS,
           loops=CHANNEL_LOOPS, lines=CHANNEL_LINES),
    Kernel("gated_linear", "linear_attention_channel_keys", "token >= 0", 1568 * HEAD_TOKENS,
           loops=CHANNEL_LOOPS, lines=CHANNEL_LINES),
    Kernel("lavo", "lavo_pass_forward<64, false>", "number < last", 652 * HEAD_TOKENS,
           loops=[("square = begin", 2)]),
    Kernel("lavo", "orthogonal_memory_fast_backward<64, 2>", "number >= first", 648 * HEAD_TOKENS),
    Kernel("lavo", "lavo_pass_window_backward<64>", "number >= from", 1032 * HEAD_TOKENS,
           loops=[("square = max(sight", 2), ("square = max(first", 1)],
           lines=[("if (number > from) begin(", 0)]),  # of one stage
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
    Kernel("performer", "largest_projection_rows", "", 4 * (FEATURES + 64) * HEAD_TOKENS, HEAD_TOKENS / 8, ROW),
    Kernel("performer", "positive_feature_rows", "", 4 * (2 * FEATURES + 64) * HEAD_TOKENS, HEAD_TOKENS / 8, ROW,
           NO_MASK),
    Kernel("performer", "positive_feature_rows_backward", "", 4 * (3 * FEATURES + 2 * 64) * HEAD_TOKENS,
           HEAD_TOKENS / 8, ROW, NO_MASK),
    Kernel("train", "for_each_eight<WeightedSum>", "", 4 * ROWS * WIDTH, ROWS * WIDTH / 2048, EIGHT,
           [("? sum<T, kernel_bf16", 0)]),
    Kernel("train", "for_each_eight<Convert>", "", 6 * PARAMETERS, PARAMETERS / 2048, EIGHT,
           [("visit_eight<float>(", 1), ("visit_eight<kernel_bf16>(", 0)]),
    Kernel("train", "for_each_eight<Lookup>", "", 2 * ROWS * WIDTH, ROWS * WIDTH / 2048, EIGHT),
    Kernel("train", "embedding_gradient", "", 2 * ROWS * WIDTH + 4 * SPLITS * 256 * WIDTH, SPLITS * 16,
           [("unsigned left", 1), ("row < kTableRows", 16)], [("s.accumulate", 0)],
           [("token < end", ROWS / SPLITS / 128, 16 + 16 * 16)]),
    Kernel("train", "sinusoidal", "", 4 * ROWS * WIDTH, ROWS / 16,
           [("pair < pairs_", WIDTH / 512)], streams=[("item < items", 16 * WIDTH / 8 / 256, 36)]),
    Kernel("train", "sum_row_chunks", "", 4 * (SPLITS + 1) * 256 * WIDTH, WIDTH, streams=[
        ("r += kRowThreads", SPLITS / 8, 32)]),
    Kernel("train", "sum_blocks", "", 4 * PARAMETERS, PARAMETERS / 8192, [("i += threads * kCount", 8)],
           [("elements<kernel_bf16>(from, begin)", 0), ("i < here", 0)]),
    Kernel("train", "for_each_update<adam #1, adam #1>", "", 28 * PARAMETERS, PARAMETERS / 32768,
           [("i += kThreads * kTogether", 32), ("i += kThreads)", 0)],
           [("if (!aligned ||", 0)]),
    Kernel("train_dropout", "rotary", "", 4 * ROWS * WIDTH, ROWS * 8 / 256,
           [("pair < pairs_", 1)], streams=[("h += kHeads", 3, 128), ("h < a.heads; ++h", 0, 8)]),
    Kernel("train_dropout", "residual_norm_rows<bf16, true>", "", 8 * ROWS * WIDTH, ROWS / 4, CHANNELS,
           DRAWS),
    Kernel("train_dropout", "norm_backward_rows<bf16, true>", "", 10 * ROWS * WIDTH, ROWS / 4, CHANNELS, DRAWS),
    Kernel("train_dropout", "dropout_rows", "", 4 * ROWS * WIDTH, ROWS / 8, lines=DRAWS,
           streams=[("c += kLanes * kCount", WIDTH / 256, 48)]),
    # Of a chunk of 32 tokens, of the warps that take longer.
    Kernel("deltanet", "delta_attention_fast_scan<false>", "step <= chunks", 768 * HEAD_TOKENS, 2 * CHUNKS,
           lines=PREPARES),
    Kernel("deltanet", "delta_attention_fast_scan<true>", "step <= chunks", 640 * HEAD_TOKENS, 2 * CHUNKS,
           lines=PREPARES),
    Kernel("deltanet", "delta_attention_fast_gradients", "", 1152 * HEAD_TOKENS,
           loops=[("job < 5", 5), ("square <= warp", 2.5), ("square < 4", 2.5)], lines=[("correct_values(", 0)]),
    Kernel("conv", "depthwise_conv_toeplitz<false>", "tile <= last", 256 * HEAD_TOKENS, loops=BEFORE, lines=DOCUMENTS),
    Kernel("conv", "depthwise_conv_toeplitz<true>", "tile <= last", 384 * HEAD_TOKENS, loops=BEFORE, lines=DOCUMENTS),
    Kernel("train", "residual_norm_rows<bf16, false>", "", 8 * ROWS * WIDTH, ROWS / 4, CHANNELS),
    Kernel("train", "norm_rows<bf16>", "", 4 * ROWS * WIDTH, ROWS / 4, CHANNELS),
    Kernel("train", "norm_backward_rows<bf16, false>", "", 8 * ROWS * WIDTH, ROWS / 4, CHANNELS),
    Kernel("train", "norm_parameter_sums", "", 4 * ROWS * WIDTH, ROWS * WIDTH / 32768, streams=[
        ("r += kRowThreads", 16, 16 + 16 + 4 + 4)]),
    Kernel("loss", "cross_entropy_rows<bf16>", "", 4 * LOSSES * WORDS, LOSSES,
           [("w < blockDim.x / 32", 2), ("i += threads * kCount", WORDS / 2048), ("gradient && c < classes", 0)]),
]  # fmt: skip
