// Checks of order in time: causality, chunks, calls of no tokens, packing, the size of the state.
#include <cmath>

#include "attention/conformance/internal.h"

namespace linnet::conformance {
namespace {

// y of a batch split into consecutive calls at the given tokens.
Result run_in_calls(const Subject& subject, const Batch& batch, std::vector<int64_t> ends,
                    bool training = false) {
  ends.push_back(batch.length());
  Result result;
  std::vector<Tensor> outputs;
  int64_t begin = 0;
  for (const int64_t end : ends) {
    Result call = subject.run(tokens_of(batch, begin, end), result.state, training);
    result.state = std::move(call.state);
    outputs.push_back(call.y);
    begin = end;
  }
  result.y = join_tokens(outputs).to(DType::f64);
  return result;
}

std::vector<int64_t> every_token(int64_t length) {
  std::vector<int64_t> ends;
  for (int64_t t = 1; t < length; ++t) ends.push_back(t);
  return ends;
}

void require_same_state(const Setup& setup, const MixerState& a, const MixerState& b,
                        const std::string& what) {
  require(a.size() == b.size(), what, ": expected ", b.size(), " state tensors, got ", a.size());
  for (const auto& [name, value] : b) {
    require(a.contains(name), what, ": the state lacks '", name, "'");
    require_close(a.at(name).value(), value.value(), 10 * setup.rounding(),
                  what + ", state " + name);
  }
}

// Three documents in each row, with positions that restart.
Batch packed_batch(const Setup& setup, const std::vector<int64_t>& lengths) {
  int64_t total = 0;
  for (const int64_t n : lengths) total += n;
  Batch batch = setup.batch(2, total, 13);
  batch.segments = Tensor::empty({2, total}, DType::i32);
  for (int64_t b = 0; b < 2; ++b) {
    int64_t at = b * total;
    for (size_t d = 0; d < lengths.size(); ++d) {
      for (int64_t t = 0; t < lengths[d]; ++t, ++at) {
        batch.segments.data<int32_t>()[at] = static_cast<int32_t>(d);
        batch.positions.data<int32_t>()[at] = static_cast<int32_t>(t);
      }
    }
  }
  return batch;
}

}  // namespace

std::string check_causality(const Setup& setup) {
  if (!setup.causal()) throw NotApplicable{"not a causal form"};
  std::vector<DType> dtypes{DType::f32};
  if (setup.on_cpu()) dtypes.push_back(DType::f64);
  const int64_t length = setup.length();
  std::vector<int64_t> changed{1, 2, 7, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 69};
  if (setup.brief()) changed = {1, 32, 40};
  for (const DType dtype : dtypes) {
    const Subject subject = setup.subject(dtype);
    Batch batch = setup.batch(2, length, 4);
    const Result before = subject.run(batch);
    const Tensor original = batch.x;
    const int64_t width = original.size(2);
    for (const int64_t t : changed) {
      batch.x = original.clone();
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t c = t * width; c < length * width; ++c) {
          double& value = batch.x.data<double>()[b * length * width + c];
          value = 4 - 3 * value;
        }
      }
      const Result after = subject.run(batch);
      require_same_bits(tokens_of(after.y, 0, t), tokens_of(before.y, 0, t),
                        concat("trait causal: changing tokens from ", t, " in ", name_of(dtype),
                               " reaches earlier outputs"));
      // A token that reads nothing (the first group of FLASH's global branch) has no output to
      // change.
      const auto reads = [&](const Result& result) {
        return !result.context.defined() ||
               largest_magnitude(tokens_of(result.context, t, t + 1)) != 0;
      };
      require(!same_bits(tokens_of(after.y, t, t + 1), tokens_of(before.y, t, t + 1)) ||
                  !(reads(before) || reads(after)),
              "changing token ", t, " does not change its own output");
    }
  }
  return "bit-equal";
}

std::string check_chunks(const Setup& setup) {
  if (setup.form == Form::noncausal) throw NotApplicable{"a noncausal form has no decode state"};
  // Then check_state_size requires that no state is left.
  if (setup.causal() && !setup.traits.decode_state) {
    throw NotApplicable{"the mechanism has no decode state"};
  }
  const Subject subject = setup.subject(setup.widest());
  const int64_t length = setup.length();
  Batch batch = setup.batch(2, length, 6);
  const Result whole = subject.run(batch);
  // Wide models, which cost more, at every fourth point.
  const int64_t stride = setup.brief() ? 32 : setup.options.width > 32 ? 4 : 1;
  for (int64_t at = 1; at < length; at += stride) {
    const Result two_calls = run_in_calls(subject, batch, {at});
    require_close(two_calls.y, whole.y, setup.rounding(), concat("split at ", at));
    require_same_state(setup, two_calls.state, whole.state, concat("split at ", at));
  }
  // The first tokens one by one; where it is brief, the rest at once.
  const Result tokens = run_in_calls(subject, batch, every_token(setup.brief() ? 10 : length));
  const double worst = require_close(tokens.y, whole.y, setup.rounding(), "token by token");
  require_same_state(setup, tokens.state, whole.state, "token by token");
  // With padding inside, and in several calls.
  const int64_t late = setup.brief() ? 44 : 64;
  batch.mask = full_mask(2, length);
  pad_row(batch.mask, 0, 20, 26);
  pad_row(batch.mask, 1, length - 10, length);
  const Result masked = subject.run(batch);
  require_close(run_in_calls(subject, batch, {5, 22, 23, 40, late}).y, masked.y, setup.rounding(),
                "split with padding");
  // Dropout is a function of places, which do not depend on the split into calls.
  Setup with_dropout = setup;
  with_dropout.options.dropout = 0.3;
  const Subject dropping = with_dropout.subject(setup.widest());
  require_close(run_in_calls(dropping, batch, {5, 22, late}, true).y,
                dropping.run(batch, {}, true).y, setup.rounding(),
                "split in training with dropout");
  return concat("token by token differs by ", worst);
}

std::string check_empty(const Setup& setup) {
  const Subject subject = setup.subject(setup.widest());
  const Batch batch = setup.batch(2, 24, 8);
  const auto require_empty = [&](const Variable& y, const char* what) {
    const Shape expected{2, 0, setup.options.width};
    require(y.shape() == expected, what, ": expected y ", expected, ", got ", y.shape());
  };
  // Alone, with all that describes tokens, and backward.
  Batch nothing = setup.batch(2, 0, 8);
  for (const bool described : {false, true}) {
    if (described) nothing.mask = full_mask(2, 0);
    if (described && setup.causal() && !setup.traits.exempt.contains("packing")) {
      nothing.segments = Tensor::zeros({2, 0}, DType::i32);
    }
    const MixerResult result = subject.forward(subject.input(nothing.x, true),
                                               subject.input(nothing.source), nothing, {}, true);
    require_empty(result.y, "a call of 0 tokens");
    backward({result.y}, {Tensor::zeros(result.y.shape(), result.y.dtype(), setup.device)});
  }
  // Between others it leaves the state as it was.
  if (setup.form == Form::noncausal || (setup.causal() && !setup.traits.decode_state)) return "";
  for (const int64_t at : {0, 10}) {
    const MixerState before = at > 0 ? subject.run(tokens_of(batch, 0, at)).state : MixerState{};
    const Result between = subject.run(tokens_of(batch, at, at), before);
    require_empty(Variable(between.y), "a call of 0 tokens after others");
    const Batch rest = tokens_of(batch, at, batch.length());
    require_close(subject.run(rest, between.state).y, subject.run(rest, before).y, setup.rounding(),
                  concat("tokens after a call of 0 tokens at ", at));
  }
  return "";
}

std::string check_packing(const Setup& setup) {
  if (setup.cross()) throw NotApplicable{"queries of a row belong to one source"};
  if (setup.form == Form::noncausal && setup.traits.depends_on_length) {
    throw NotApplicable{"the output depends on the length of the row"};
  }
  // One document longer than a chunk or tile; in all, setup.length().
  const std::vector<int64_t> lengths =
      setup.brief() ? std::vector<int64_t>{4, 1, 37, 3} : std::vector<int64_t>{23, 1, 41, 5};
  const Subject subject = setup.subject(setup.widest());
  const Batch batch = packed_batch(setup, lengths);
  const Result packed = subject.run(batch);
  int64_t begin = 0;
  double worst = 0;
  Result alone;
  for (const int64_t n : lengths) {
    Batch document = tokens_of(batch, begin, begin + n);
    document.segments = Tensor();
    alone = subject.run(document);
    worst = std::max(worst, require_close(tokens_of(packed.y, begin, begin + n), alone.y,
                                          setup.rounding(), concat("document of ", n, " tokens")));
    begin += n;
  }
  if (setup.causal()) {
    // The state is that of the last document.
    const Batch more = next_batch(batch, setup.form, 19, lengths.back(), 14);
    require_close(subject.run(more, packed.state).y, subject.run(more, alone.state).y,
                  setup.rounding(), "continuing after the last document");
  }
  return concat("largest difference ", worst);
}

std::string check_state_size(const Setup& setup) {
  const Subject subject = setup.subject(DType::f32);
  size_t tensors = 0;
  const auto bytes_after = [&](int64_t length) {
    size_t total = 0;
    tensors = 0;
    for (const auto& [name, value] : subject.run(setup.batch(1, length)).state) {
      total += value.value().bytes();
      ++tensors;
      require(value.size(0) == 1, "state ", name, " has no batch dimension: ", value.shape());
      require(value.dtype() != DType::bf16, "state ", name, " must be f32 or wider");
    }
    return total;
  };
  size_t early = bytes_after(64), late = bytes_after(128);
  // A window of the past is full only later.
  if (setup.traits.constant_state && setup.causal() && early != late) {
    early = bytes_after(320);
    late = bytes_after(384);
  }
  if (setup.form == Form::noncausal) {
    require(late == 0, "a noncausal form must leave no state, got ", late, " bytes");
    return "no state";
  }
  if (setup.cross()) {
    require(late > 0 && early == late, "the encoded source must be kept, whatever the queries");
    return concat(late, " bytes for a source of ", Setup::kSourceLength, " tokens");
  }
  require((tensors > 0) == setup.traits.decode_state, "trait decode_state: is ",
          setup.traits.decode_state ? "true" : "false", ", but ", tensors,
          " state tensors are left");
  if (tensors == 0) return "no state";
  require((early == late) == setup.traits.constant_state, "trait constant_state: is ",
          setup.traits.constant_state ? "true" : "false", ", but the state has ", early,
          " bytes early and ", late, " after 64 tokens more");
  return concat(early, " bytes early, ", late, " after 64 tokens more");
}

}  // namespace linnet::conformance
