// The processes ("ranks") that train one run together, and what they decide alike.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/comm/communicator.h"
#include "recipes/engine/recipe.h"

namespace linnet {

// Refers to its communicator. All ranks call the same functions in the same order; those that
// exchange something throw Error as a Communicator does. For a process that is alone they do
// nothing.
class Job {
 public:
  explicit Job(Communicator& ranks) : ranks_(ranks) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  Communicator& ranks() const { return ranks_; }
  int rank() const { return ranks_.rank(); }
  int size() const { return ranks_.size(); }
  bool is_alone() const { return size() == 1; }
  // Whether this is rank 0: it alone plans the run, writes and logs.
  bool leads() const { return rank() == 0; }

  // The signal that asks for the end, or 0. Of several processes: one that any of them had received
  // at the last sum(), so that all stop at the same place.
  int stop_signal() const;
  // Sums every value over the ranks. Afterwards all agree on stop_signal().
  void sum(std::vector<double>& values);
  // Whether it is true for any rank.
  bool any(bool value) { return ranks_.sum(int64_t{value ? 1 : 0}) > 0; }
  // The text of rank 0.
  std::string of_leader(const std::string& text) { return ranks_.broadcast_text(text, 0); }
  // Waits until all ranks are here, for hours where it must.
  void wait_for_all();
  // Does the work on rank 0, then on all others, which find the files that it left. It may take
  // hours.
  void leader_first(const std::function<void()>& work);
  // Throws UsageError, on all ranks, where a rank's text differs from that of rank 0: `what` is
  // "thread count".
  void require_same(const std::string& what, const std::string& text);
  // The same of the recipe, naming the first key that differs.
  void require_same_recipe(const Recipe& recipe);

 private:
  Communicator& ranks_;
  int agreed_signal_ = 0;
};

// That of a process that is alone.
Job& alone();

}  // namespace linnet
