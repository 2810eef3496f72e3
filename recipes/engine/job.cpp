#include "recipes/engine/job.h"

#include "core/hash.h"
#include "core/interrupt.h"
#include "core/yaml.h"
#include "recipes/engine/without_effect.h"

namespace linnet {
namespace {

constexpr std::chrono::hours kLongWait{24};

// The first rank whose text is another than that of rank 0, or 0.
size_t other_rank(const std::vector<std::string>& texts) {
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] != texts[0]) return rank;
  }
  return 0;
}

}  // namespace

int Job::stop_signal() const {
  return is_alone() ? linnet::stop_signal() : agreed_signal_;
}

void Job::sum(std::vector<double>& values) {
  if (is_alone()) return;
  const size_t count = values.size(), size = static_cast<size_t>(ranks_.size());
  values.resize(count + size);
  values[count + static_cast<size_t>(rank())] = linnet::stop_signal();
  const Tensor sums = Tensor::from(values, {std::ssize(values)});
  ranks_.all_reduce_sum(sums);
  values = sums.to_vector<double>();
  for (size_t i = count; i < count + size && agreed_signal_ == 0; ++i) {
    agreed_signal_ = static_cast<int>(values[i]);
  }
  values.resize(count);
}

void Job::wait_for_all() {
  if (is_alone()) return;
  const auto limit = ranks_.time_limit();
  ranks_.set_time_limit(kLongWait);
  ranks_.barrier();
  ranks_.set_time_limit(limit);
}

void Job::leader_first(const std::function<void()>& work) {
  if (leads()) work();
  wait_for_all();
  if (!leads()) work();
  wait_for_all();
}

void Job::require_same(const std::string& what, const std::string& text) {
  if (is_alone()) return;
  const std::vector<std::string> texts = ranks_.all_gather_text(text);
  const size_t other = other_rank(texts);
  require_usage(other == 0, Cause{ErrorCode::conflict}, "rank ", other, " has another ", what, " (",
                texts[other], ") than rank 0 (", texts[0], "); start all ranks alike");
}

void Job::require_same_recipe(const Recipe& recipe) {
  if (is_alone()) return;
  const std::string text = to_yaml(recipe.resolved);
  const std::vector<std::string> hashes = ranks_.all_gather_text(hash128_hex(text));
  const size_t other = other_rank(hashes);
  if (other == 0) return;
  const bool tell = ranks_.sum(int64_t{text.size() > kMaxTextBytes ? 1 : 0}) == 0;
  const std::vector<std::string> texts = ranks_.all_gather_text(tell ? text : "");
  const std::string key =
      difference_apart_from(parse_yaml(texts[0], "rank 0"), parse_yaml(texts[other], "another"), "",
                            [](const std::string&) { return false; });
  throw UsageError(
      Cause{ErrorCode::conflict, key},
      concat("rank ", other, " has another recipe than rank 0",
             key.empty() ? "" : concat(" ('", key, "' differs)"), "; start all ranks alike"));
}

Job& alone() {
  static const std::unique_ptr<Communicator> communicator = make_single_communicator();
  static Job job(*communicator);
  return job;
}

}  // namespace linnet
