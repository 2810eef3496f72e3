// Reads a case, runs it call by call, writes outputs, states, draws and gradients.
#include "attention/case.h"

#include <cstring>

#include "attention/case_input.h"
#include "attention/common/token_slices.h"
#include "autograd/arithmetic.h"
#include "core/hdf5.h"

namespace linnet {
namespace {

using namespace case_detail;

// On the host.
Tensor gradient_of(const Variable& leaf) {
  return leaf.grad().defined() ? leaf.grad().to(Device{})
                               : Tensor::zeros(leaf.shape(), leaf.dtype());
}

// One call: its leaves and results.
struct Call {
  Variable x, q, k, v;
  Variable y, context;
};

class Run {
 public:
  Run(Case& c, const CaseOptions& options) : c_(c), options_(options) {}

  std::string operator()() {
    const int64_t length = c_.length;
    const int64_t step = options_.mode == CaseMode::parallel  ? length
                         : options_.mode == CaseMode::chunked ? options_.chunk
                                                              : 1;
    const bool record = c_.cotangent.defined() || !c_.cotangent_state.empty();
    const NoGrad off(!record);
    if (c_.source.defined()) source_ = Variable(here(c_.source), record);
    if (c_.core && c_.cross()) {
      source_k_ = Variable(here(c_.k), record);
      source_v_ = Variable(here(c_.v), record);
    }
    for (const auto& [name, value] : c_.state) {
      first_state_[name] = Variable(here(value), record && is_floating(value.dtype()));
    }
    state_ = first_state_;
    for (int64_t begin = 0; begin < length; begin += step) {
      call(begin, std::min(begin + step, length), record);
    }
    refuse_unused(c_, used_, state_);
    Hdf5Writer writer;
    write_outputs(writer);
    write_draws(writer);
    if (record) write_gradients(writer);
    return writer.finish();
  }

 private:
  void call(int64_t begin, int64_t end, bool record) {
    Call current;
    MixerContext context = c_.context;
    context.positions = here(tokens_of(c_.context.positions, begin, end));
    context.key_positions = here(c_.cross() ? c_.context.key_positions
                                            : tokens_of(c_.context.key_positions, begin, end));
    context.key_mask = here(tokens_of(c_.context.key_mask, begin, end));
    context.source_mask = here(c_.context.source_mask);
    context.place.time_offset += begin;
    CallDraws draws = c_.given;
    for (auto* group : {&draws.given_draws, &draws.given_choices}) {
      for (auto& [name, tensor] : *group) tensor = of_call(name, tensor, begin, end);
    }
    context.record = &draws;
    const auto leaf = [&](const Tensor& tensor) {
      const Tensor part = here(tokens_of(tensor, begin, end));
      return part.defined() ? Variable(part, record) : Variable();
    };
    current.x = leaf(c_.x);
    if (c_.core) {
      current.q = leaf(c_.q);
      const bool encode = c_.cross() && state_.empty();
      current.k = c_.cross() ? (encode ? source_k_ : Variable()) : leaf(c_.k);
      current.v = c_.cross() ? (encode ? source_v_ : Variable()) : leaf(c_.v);
      AttentionMixer::MixResult result = c_.attention->attend(
          {current.q, current.k, current.v, current.x, source_}, context, state_);
      current.y = result.y;
      current.context =
          reshape(result.y, {c_.rows, end - begin, result.y.size(2) * result.y.size(3)});
      state_ = std::move(result.state);
    } else {
      MixerResult result = c_.cross() ? c_.mixer->forward_cross(current.x, source_, context, state_)
                                      : c_.mixer->forward(current.x, context, state_);
      current.y = result.y;
      current.context = result.context;
      state_ = std::move(result.state);
      for (auto& [name, stream] : result.streams) streams_[name] = std::move(stream);
    }
    note(used_.draws, draws.draws, "draws");
    note(used_.choices, draws.choices, "choices");
    calls_.push_back(std::move(current));
  }

  // Whether a draw or choice has one entry per token, [B,T,...]; then each call takes its slice.
  bool is_of_tokens(const std::string& name) const {
    return name.starts_with("token_query_") || (!c_.cross() && name.starts_with("token_"));
  }
  Tensor of_call(const std::string& name, const Tensor& tensor, int64_t begin, int64_t end) const {
    if (!is_of_tokens(name)) return tensor;
    require_usage(tensor.shape().rank() >= 2 && tensor.size(1) == c_.length, c_.label, ": ", name,
                  ": expected an entry for each of ", c_.length, " tokens, got ", tensor.shape());
    return tokens_of(tensor, begin, end);
  }

  // Adds the draws or choices of a call to those of the calls before. One name, one tensor: unless
  // it has one entry per token, it must not differ from call to call.
  void note(std::map<std::string, Tensor>& all, const std::map<std::string, Tensor>& call,
            const char* group) const {
    for (const auto& [name, tensor] : call) {
      const Tensor host = tensor.to(Device{});
      const auto [before, fresh] = all.try_emplace(name, host);
      if (!fresh && is_of_tokens(name)) {
        before->second = join_tokens({before->second, host});
        continue;
      }
      const bool same = before->second.shape() == host.shape() &&
                        std::memcmp(before->second.raw(), host.raw(), host.bytes()) == 0;
      require_usage(fresh || same, c_.label, ": ", group, "/", name,
                    " differ from call to call; use --mode parallel");
    }
  }

  // On the device of the run; undefined stays undefined.
  Tensor here(const Tensor& tensor) const {
    return tensor.defined() ? tensor.to(options_.device) : tensor;
  }
  DType written() const { return options_.dtype == DType::f64 ? DType::f64 : DType::f32; }

  // The same member of all calls, or of their gradients, joined in time.
  Tensor collect(Variable Call::*member, bool gradient) const {
    std::vector<Tensor> parts;
    for (const Call& one : calls_) {
      const Variable& variable = one.*member;
      parts.push_back(gradient ? gradient_of(variable) : variable.value().to(Device{}));
    }
    return join_tokens(parts).to(written());
  }

  void write_outputs(Hdf5Writer& writer) const {
    writer.write("outputs/y", collect(&Call::y, false));
    if (calls_.front().context.defined()) {
      writer.write("outputs/context", collect(&Call::context, false));
    }
    for (const auto& [name, value] : state_) {
      const Tensor& tensor = value.value();
      writer.write("state/" + name, tensor.dtype() == DType::bf16 ? tensor.to(DType::f32) : tensor);
    }
    for (const auto& [name, value] : streams_) {
      writer.write("streams/" + c_.own_name(name), value.value().to(Device{}).to(written()));
    }
  }

  void write_draws(Hdf5Writer& writer) const {
    for (const ParameterSet::Buffer& buffer : c_.parameters->buffers()) {
      writer.write("draws/" + c_.own_name(buffer.name), buffer.variable.value());
    }
    for (const auto& [name, draw] : used_.draws) writer.write("draws/" + name, draw);
    for (const auto& [name, choice] : used_.choices) {
      writer.write("choices/" + name, choice.to(DType::i64));
    }
  }

  void write_gradients(Hdf5Writer& writer) {
    std::vector<Variable> outputs;
    std::vector<Tensor> seeds;
    int64_t begin = 0;
    for (const Call& one : calls_) {
      const int64_t end = begin + one.y.size(1);
      if (c_.cotangent.defined()) {
        require_usage(c_.cotangent.size(1) == c_.length &&
                          tokens_of(c_.cotangent, begin, end).shape() == one.y.shape(),
                      c_.label, ": expected a cotangent like outputs/y, got ",
                      c_.cotangent.shape());
        outputs.push_back(one.y);
        seeds.push_back(here(tokens_of(c_.cotangent, begin, end).to(one.y.dtype())));
      }
      begin = end;
    }
    for (const auto& [name, tensor] : c_.cotangent_state) {
      require_usage(state_.contains(name) && state_.at(name).shape() == tensor.shape(), c_.label,
                    ": cotangent_state/", name, " fits no state tensor");
      outputs.push_back(state_.at(name));
      seeds.push_back(here(tensor.to(state_.at(name).dtype())));
    }
    backward(outputs, seeds);
    if (c_.x.defined()) writer.write("grads/x", collect(&Call::x, true));
    if (source_.defined()) writer.write("grads/source", gradient_of(source_).to(written()));
    if (c_.core) {
      writer.write("grads/q", collect(&Call::q, true));
      writer.write("grads/k",
                   c_.cross() ? gradient_of(source_k_).to(written()) : collect(&Call::k, true));
      writer.write("grads/v",
                   c_.cross() ? gradient_of(source_v_).to(written()) : collect(&Call::v, true));
    }
    for (const ParameterSet::Entry& entry : c_.parameters->entries()) {
      if (c_.core && is_projection(c_.own_name(entry.name))) continue;
      writer.write("grads/params/" + c_.own_name(entry.name),
                   gradient_of(entry.variable).to(written()));
    }
    for (const auto& [name, leaf] : first_state_) {
      if (leaf.requires_grad())
        writer.write("grads/state/" + name, gradient_of(leaf).to(written()));
    }
  }

  Case& c_;
  CaseOptions options_;
  Variable source_, source_k_, source_v_;
  MixerState first_state_, state_, streams_;
  CallDraws used_;
  std::vector<Call> calls_;
};

}  // namespace

CaseMode case_mode_from_name(std::string_view name) {
  if (name == "parallel") return CaseMode::parallel;
  if (name == "chunked") return CaseMode::chunked;
  if (name == "recurrent") return CaseMode::recurrent;
  throw UsageError({ErrorCode::unknown_name, "mode"},
                   concat("unknown mode '", name, "'; expected parallel, chunked or recurrent"));
}

std::string run_case(std::string_view image, const std::string& label, const CaseOptions& options) {
  require_usage(is_floating(options.dtype), "attention run: expected dtype f64, f32 or bf16, got ",
                name_of(options.dtype));
  require_usage(options.device.kind == DeviceKind::cpu || options.dtype != DType::f64,
                "attention run: ", name_of(options.device),
                " computes in f32 and bf16; use --device cpu for f64");
  require_usage(options.chunk > 0, "attention run: chunks must have at least one token");
  const Hdf5Reader reader(image, label);
  Case c = read_case(reader, label, options.dtype, options.device);
  const std::string single = c.single_call_reason();
  require_usage(options.mode == CaseMode::parallel || single.empty(),
                Cause{ErrorCode::conflict, "mode", label}, label, ": the ", name_of(c.form),
                " form of '", c.mechanism,
                "' with this config cannot be computed in several calls: ", single,
                "; use --mode parallel");
  return Run(c, options)();
}

}  // namespace linnet
