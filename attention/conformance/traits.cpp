// The check of the traits that no other check contradicts when they are false: noncausal, cross,
// depends_on_length, and what one trait demands of another.
#include "attention/conformance/internal.h"

namespace linnet::conformance {
namespace {

// Whether two runs differ by more than another order of the same sums makes them.
bool differ(const Setup& setup, const Tensor& a, const Tensor& b) {
  return !(largest_difference(a, b) <=
           100 * setup.rounding() * std::max(1.0, largest_magnitude(b)));
}

// Some later token reaches some earlier output, in whatever window, block or group.
void require_noncausal(const Setup& setup, const Subject& subject) {
  const int64_t length = setup.length();
  const Batch batch = setup.batch(1, length, 31);
  const Tensor before = subject.run(batch).y;
  for (const int64_t t : {length - 1, length / 2, int64_t{1}}) {
    Batch changed = batch;
    changed.x = batch.x.clone();
    for (int64_t c = t * batch.x.size(2); c < batch.x.elements(); ++c) {
      changed.x.data<double>()[c] += 2;
    }
    const Tensor after = subject.run(changed).y;
    if (differ(setup, tokens_of(after, 0, t), tokens_of(before, 0, t))) return;
  }
  throw Error("trait noncausal: is true, but no later token reaches an earlier output");
}

void require_cross(const Setup& setup, const Subject& subject) {
  Batch batch = setup.batch(1, 7, 32);
  const Tensor before = subject.run(batch).y;
  batch.source = setup.batch(1, 7, 33).source;
  require(differ(setup, subject.run(batch).y, before),
          "trait cross: is true, but another source leaves the outputs as they are");
}

// The same tokens alone, and in a row twice as long, the rest of which is padding.
void require_length_dependence(const Setup& setup, const Subject& subject) {
  const int64_t length = 70, padded_length = 2 * length;
  const Batch batch = setup.batch(1, length, 34);
  Batch padded = setup.batch(1, padded_length, 35);
  std::copy_n(batch.x.data<double>(), batch.x.elements(), padded.x.data<double>());
  padded.mask = full_mask(1, padded_length);
  pad_row(padded.mask, 0, length, padded_length);
  const Tensor alone = subject.run(batch).y;
  const Tensor found = tokens_of(subject.run(padded).y, 0, length);
  const bool depends = differ(setup, found, alone);
  // It may be the noncausal form alone that depends on it.
  if (!depends && setup.causal() && setup.traits.noncausal) return;
  require(depends == setup.traits.depends_on_length, "trait depends_on_length: is ",
          setup.traits.depends_on_length ? "true" : "false", ", but padding a row of ", length,
          " tokens to ", padded_length, " changes outputs by ", largest_difference(found, alone));
}

}  // namespace

std::string check_traits(const Setup& setup) {
  const MixerTraits& traits = setup.traits;
  require(traits.causal || !traits.decode_state,
          "trait decode_state: is true, but there is no causal form that could decode");
  require(traits.decode_state || !traits.constant_state,
          "trait constant_state: is true, but the trait decode_state is false: no state is left");
  const Subject subject = setup.subject(setup.widest());
  if (setup.form == Form::noncausal) require_noncausal(setup, subject);
  if (setup.cross()) {
    require_cross(setup, subject);
  } else if (!setup.brief()) {
    require_length_dependence(setup, subject);
  }
  return "as declared";
}

}  // namespace linnet::conformance
