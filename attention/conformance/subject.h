// Subjects of the conformance suite: a mixer with random parameters, and random batches.
#pragma once

#include <string>
#include <vector>

#include "attention/common/token_slices.h"
#include "attention/mechanism.h"

namespace linnet::conformance {

// A batch in double on the host. Masks, segments and source may be undefined.
struct Batch {
  Tensor x, source;             // f64 [B,T,E], [B,S,E]
  Tensor mask, source_mask;     // u8
  Tensor segments;              // i32
  Tensor positions;             // i32 [B,T]
  int64_t first_example = 100;  // global number of row 0, which names draws
  int64_t rows() const { return x.size(0); }
  int64_t length() const { return x.size(1); }
};

// Normal values; positions 0, 1, ...; a source of `source_length` tokens for the cross form.
Batch random_batch(Form form, int64_t rows, int64_t length, int64_t source_length, int64_t width,
                   uint64_t seed);
// A batch that follows `before` tokens of the same rows; in the cross form, other queries of the
// same source.
Batch next_batch(const Batch& batch, Form form, int64_t length, int64_t before, uint64_t seed);
// Tokens [begin, end) of every row; the source is kept.
Batch tokens_of(const Batch& batch, int64_t begin, int64_t end);
Batch slice_row(const Batch& batch, int64_t row);
// Marks tokens [begin, length) of a row as padding.
void pad_row(const Tensor& mask, int64_t row, int64_t begin, int64_t end);
Tensor full_mask(int64_t rows, int64_t length);

struct Result {
  Tensor y, context;  // in the subject's dtype
  MixerState state;
  CallDraws used;  // draws and choices, on the host
};

// Draws and choices of one run, as given to another.
CallDraws given(const CallDraws& used);

// A mixer of one layer with all parameters drawn, biases and zero-initialised ones included, so
// that nothing passes because it is zero. Subjects with one seed have equal parameters up to
// rounding, whatever their dtype.
class Subject {
 public:
  static constexpr const char* kOwnPrefix = "mixer";

  Subject(const Mechanism& mechanism, const ConfigNode& parameters, const MixerOptions& options,
          DType dtype, uint64_t seed = 1, Device device = {});

  MixerResult forward(const Variable& x, const Variable& source, const Batch& batch,
                      const MixerState& state, bool training = false,
                      CallDraws* record = nullptr) const;
  // The same without recording for backward; y and context are brought to the host.
  Result run(const Batch& batch, const MixerState& state = {}, bool training = false,
             const CallDraws& given = {}) const;

  MixerCost cost(const MixerShape& shape) const { return mixer_->cost(shape); }
  const MixerOptions& options() const { return options_; }
  DType dtype() const { return dtype_; }
  // Host values in the subject's dtype on its device; undefined stays undefined.
  Variable input(const Tensor& values, bool requires_grad = false) const;
  ParameterSet& parameters() { return *set_; }
  const ParameterSet& parameters() const { return *set_; }
  // A parameter's name without the scope's prefix: "q.weight".
  static std::string own_name(const std::string& name);
  // Weights and buffers by own name, as the mixer uses them (rounded to its dtype).
  std::map<std::string, std::vector<double>> weights() const;
  void set_weights(const std::map<std::string, std::vector<double>>& weights);

 private:
  MixerOptions options_;
  DType dtype_;
  Device device_;
  std::unique_ptr<ParameterSet> set_;
  std::unique_ptr<TokenMixer> mixer_;
};

// Sizes at which the suite runs this mechanism: two heads of the given width.
MixerOptions check_options(Form form, int64_t head_width);

// The largest |a - b|, infinite where one is NaN; shapes must agree.
double largest_difference(const Tensor& a, const Tensor& b);
// The largest |a|, infinite where one is NaN.
double largest_magnitude(const Tensor& a);
bool same_bits(const Tensor& a, const Tensor& b);

}  // namespace linnet::conformance
