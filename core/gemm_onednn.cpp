#include "core/gemm_onednn.h"

#ifdef LINNET_HAVE_ONEDNN

#include <map>
#include <mutex>
#include <tuple>

#include <oneapi/dnnl/dnnl.hpp>

#include "core/threads.h"

namespace linnet {
namespace {

dnnl::memory::data_type type_of(DType dtype) {
  return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

struct Engine {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
};

Engine& engine() {
  static Engine shared;
  return shared;
}

// A primitive is made for a number of threads, the last of these.
using Key =
    std::tuple<int64_t, int64_t, int64_t, int64_t, Transpose, Transpose, DType, DType, bool, int>;

struct Product {
  dnnl::matmul primitive;
  dnnl::memory::desc a, b, c;
};

// A row-major [batch, rows, columns] operand, or its transpose read in place.
dnnl::memory::desc describe(int64_t batch, int64_t rows, int64_t columns, Transpose transpose,
                            DType dtype) {
  const auto tag =
      transpose == Transpose::yes ? dnnl::memory::format_tag::acb : dnnl::memory::format_tag::abc;
  return {{batch, rows, columns}, type_of(dtype), tag};
}

Product make_product(const dnnl::memory::desc& a, const dnnl::memory::desc& b,
                     const dnnl::memory::desc& c, bool accumulate) {
  dnnl::primitive_attr attributes;
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc description(engine().engine, a, b, c, attributes);
#else
  const dnnl::matmul::primitive_desc description({a, b, c}, attributes, engine().engine);
#endif
  return {dnnl::matmul(description), a, b, c};
}

// Limit of cached shapes: sequences of ever new lengths must not collect primitives without end.
constexpr size_t kMaxProducts = 512;

Product cached_product(const Key& key, const dnnl::memory::desc& a, const dnnl::memory::desc& b,
                       const dnnl::memory::desc& c, bool accumulate) {
  static std::mutex mutex;
  static std::map<Key, Product> products;
  const std::lock_guard lock(mutex);
  auto found = products.find(key);
  if (found == products.end()) {
    if (products.size() >= kMaxProducts) products.clear();
    found = products.emplace(key, make_product(a, b, c, accumulate)).first;
  }
  return found->second;
}

}  // namespace

void onednn_sgemm(const float* a, Transpose ta, const float* b, Transpose tb, float* c, int64_t m,
                  int64_t n, int64_t k, float alpha, float beta) {
  const char op_a = ta == Transpose::yes ? 'T' : 'N';
  const char op_b = tb == Transpose::yes ? 'T' : 'N';
  const int64_t lda = ta == Transpose::yes ? m : k;
  const int64_t ldb = tb == Transpose::yes ? k : n;
  const dnnl_status_t status = dnnl_sgemm(op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, n);
  require(status == dnnl_success, "oneDNN sgemm failed with status ", static_cast<int>(status),
          " for m=", m, " n=", n, " k=", k);
}

bool onednn_has_bf16() {
  static const bool has = [] {
    const dnnl::memory::desc square = describe(1, 16, 16, Transpose::no, DType::bf16);
    try {
      make_product(square, square, square, false);
    } catch (const dnnl::error&) {
      return false;
    }
    return true;
  }();
  return has;
}

void onednn_matmul(const Tensor& a, Transpose ta, const Tensor& b, Transpose tb, const Tensor& c,
                   int64_t batch, int64_t m, int64_t n, int64_t k, bool accumulate) {
  const Key key(batch, m, n, k, ta, tb, a.dtype(), c.dtype(), accumulate, thread_count());
  const Product product = cached_product(
      key, describe(batch, m, k, ta, a.dtype()), describe(batch, k, n, tb, b.dtype()),
      describe(batch, m, n, Transpose::no, c.dtype()), accumulate);
  Engine& shared = engine();
  product.primitive.execute(shared.stream,
                            {{DNNL_ARG_SRC, dnnl::memory(product.a, shared.engine, a.raw())},
                             {DNNL_ARG_WEIGHTS, dnnl::memory(product.b, shared.engine, b.raw())},
                             {DNNL_ARG_DST, dnnl::memory(product.c, shared.engine, c.raw())}});
  shared.stream.wait();
}

std::string onednn_version() {
  const dnnl_version_t* version = dnnl_version();
  return concat("oneDNN ", version->major, ".", version->minor, ".", version->patch);
}

}  // namespace linnet

#endif
