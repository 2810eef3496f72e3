// Splits rows of packed documents into spans.
#include "core/sequence_view.h"

namespace linnet {

std::vector<Span> make_spans(const int32_t* segments, int64_t B, int64_t T, bool has_state,
                             const int64_t* start_positions) {
  std::vector<Span> spans;
  for (int64_t b = 0; b < B; ++b) {
    int64_t begin = 0;
    const auto close = [&](int64_t end) {
      const bool first = begin == 0;
      const int64_t start = first && start_positions != nullptr ? start_positions[b] : 0;
      spans.push_back({b, begin, end, first && has_state, end == T, start});
      begin = end;
    };
    for (int64_t t = 1; segments != nullptr && t < T; ++t) {
      if (segments[b * T + t] != segments[b * T + t - 1]) close(t);
    }
    close(T);
  }
  return spans;
}

}  // namespace linnet
