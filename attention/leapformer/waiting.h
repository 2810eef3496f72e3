// Simultaneous cross-attention: queries that read a source while it still arrives (wait-k: Ma et
// al. 2019, STACL; `read`: fairseq's fixed pre-decision ratio).
#pragma once

#include <algorithm>
#include <functional>

#include "autograd/variable.h"

namespace linnet {

// The query at position i sees the first (wait + i) read tokens of the source.
struct WaitPolicy {
  int64_t wait = 0;  // 0: every query sees all of it
  int64_t read = 1;
  int64_t seen(int64_t position, int64_t source) const {
    return wait == 0 ? source : std::min(source, (wait + position) * read);
  }
};

// `count` queries at consecutive positions from `first` on, over a source. Early queries see a part
// of the source. Each is placed at the position of the last token that it sees, so that causal
// attention along the source shows it exactly that part. Linear in queries and source.
class WaitingQueries {
 public:
  // wait is at least 1.
  WaitingQueries(const WaitPolicy& policy, int64_t first, int64_t count, int64_t source);

  // Outputs of all queries, [B,count,H,V]: of early ones from `causal` [B,n,H,V], for the queries
  // that spread() places on the n tokens of arrived(); of the others from `whole`, for the queries
  // of later().
  Variable read(const std::function<Variable()>& causal,
                const std::function<Variable()>& whole) const;

  // For queries [B,count,...]. Undefined stays undefined in all of these; differentiable.
  Variable spread(const Variable& x) const;
  Variable later(const Variable& x) const;
  // For the source [B,S,...].
  Variable arrived(const Variable& x) const;
  // Masks u8 [B,count], [B,S].
  Tensor spread(const Tensor& mask) const {
    return mask.defined() ? spread(Variable(mask)).value() : mask;
  }
  Tensor later(const Tensor& mask) const {
    return mask.defined() ? later(Variable(mask)).value() : mask;
  }
  Tensor arrived(const Tensor& mask) const {
    return mask.defined() ? arrived(Variable(mask)).value() : mask;
  }

  // Early queries, and n.
  int64_t early() const { return early_; }
  int64_t tokens() const { return begin_ + early_ * step_; }

 private:
  int64_t step_, count_, early_;
  int64_t begin_;  // tokens before those that arrive for the first early query
};

}  // namespace linnet
