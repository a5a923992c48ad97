#include "trainer/models/ops/delta_rule_cpu.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

namespace distill::models {
namespace {

constexpr int64_t kLanes = 8; // partial sums of a dot product

template <typename acc_t>
acc_t dot(const acc_t* x, const acc_t* y, int64_t size) {
  acc_t lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) {
      lanes[l] += x[i + l] * y[i + l];
    }
  }
  for (; i < size; ++i) {
    lanes[i % kLanes] += x[i] * y[i];
  }
  acc_t sum = 0;
  for (const acc_t lane : lanes) {
    sum += lane;
  }
  return sum;
}

// sum += factor * x.
template <typename acc_t>
void add_scaled(acc_t* sum, acc_t factor, const acc_t* x, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    sum[i] += factor * x[i];
  }
}

// The tensors of a call, with pointers to the rows of a token.
template <typename T>
struct Rows {
  using acc_t = at::opmath_type<T>;
  const DeltaSpec& spec;
  const T* qkv;
  const acc_t* decay;
  const acc_t* beta;
  acc_t scale; // of q
  int64_t channels, heads_per_key;

  Rows(const DeltaSpec& s, const at::Tensor& qkv_NC, const DeltaGates& gates)
      : spec(s),
        qkv(qkv_NC.const_data_ptr<T>()),
        decay(gates.decay_NA.const_data_ptr<acc_t>()),
        beta(gates.beta_NA.const_data_ptr<acc_t>()),
        scale(acc_t(1) / std::sqrt(static_cast<acc_t>(s.key_dim))),
        channels(s.conv_channels()),
        heads_per_key(s.value_heads / s.key_heads) {}

  const T* q(int64_t n, int64_t key_head) const {
    return qkv + n * channels + key_head * spec.key_dim;
  }
  const T* k(int64_t n, int64_t key_head) const {
    return q(n, key_head) + spec.key_width();
  }
  int64_t value_at(int64_t n, int64_t head) const { // of [N, A, Dv]
    return (n * spec.value_heads + head) * spec.value_dim;
  }

  // Writes x / length, times `factor`, and returns 1 / length.
  acc_t normalise(const T* x, acc_t factor, acc_t* y) const {
    acc_t squares = 0;
    for (int64_t d = 0; d < spec.key_dim; ++d) {
      squares += static_cast<acc_t>(x[d]) * static_cast<acc_t>(x[d]);
    }
    const acc_t inverse = acc_t(1) / std::sqrt(squares + acc_t(1e-6));
    for (int64_t d = 0; d < spec.key_dim; ++d) {
      y[d] = static_cast<acc_t>(x[d]) * inverse * factor;
    }
    return inverse;
  }
};

template <typename T, typename acc_t>
void convert(const T* from, acc_t* to, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    to[i] = static_cast<acc_t>(from[i]);
  }
}

// Calls f(first token, length, key head) for each segment and key head, on several threads.
template <typename F>
void for_each_segment(const DeltaSpec& spec, const SequenceInfo& seq, const F& f) {
  const auto segments = static_cast<int64_t>(seq.segments_host.size()) - 1;
  at::parallel_for(0, segments * spec.key_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const auto segment = static_cast<size_t>(task / spec.key_heads);
      const int64_t first = seq.segments_host[segment], length = seq.segments_host[segment + 1] - first;
      if (length > 0) {
        f(first, length, task % spec.key_heads);
      }
    }
  });
}

// A state and one token's step of it.
template <typename T>
struct State {
  using acc_t = at::opmath_type<T>;
  std::vector<acc_t> values; // [Dk, Dv]
  std::vector<acc_t> q, k, v, held, written, out; // of the token; held: what the decayed state has for the key

  explicit State(const DeltaSpec& spec)
      : values(static_cast<size_t>(spec.key_dim * spec.value_dim)),
        q(static_cast<size_t>(spec.key_dim)),
        k(q.size()),
        v(static_cast<size_t>(spec.value_dim)),
        held(v.size()),
        written(v.size()),
        out(v.size()) {}

  void reset() {
    std::fill(values.begin(), values.end(), acc_t(0));
  }
  acc_t* row(int64_t r) {
    return values.data() + static_cast<size_t>(r) * v.size();
  }

  // Reads the token, decays the state, and computes what is written. The state is left decayed.
  void decay_and_compare(const Rows<T>& rows, int64_t n, int64_t head) {
    const int64_t key_head = head / rows.heads_per_key, gate = n * rows.spec.value_heads + head;
    rows.normalise(rows.q(n, key_head), rows.scale, q.data());
    rows.normalise(rows.k(n, key_head), acc_t(1), k.data());
    const T* value = rows.qkv + n * rows.channels + 2 * rows.spec.key_width() + head * rows.spec.value_dim;
    convert(value, v.data(), rows.spec.value_dim);
    const acc_t a = std::exp(rows.decay[gate]), beta = rows.beta[gate];
    const int64_t width = rows.spec.value_dim;
    std::fill(held.begin(), held.end(), acc_t(0));
    for (int64_t r = 0; r < rows.spec.key_dim; ++r) {
      acc_t* state = row(r);
      for (int64_t c = 0; c < width; ++c) {
        state[c] *= a;
      }
      add_scaled(held.data(), k[static_cast<size_t>(r)], state, width);
    }
    for (size_t c = 0; c < v.size(); ++c) {
      written[c] = beta * (v[c] - held[c]);
    }
  }

  // Writes, and reads the output.
  void write_and_read(const Rows<T>& rows) {
    std::fill(out.begin(), out.end(), acc_t(0));
    for (int64_t r = 0; r < rows.spec.key_dim; ++r) {
      add_scaled(row(r), k[static_cast<size_t>(r)], written.data(), rows.spec.value_dim);
      add_scaled(out.data(), q[static_cast<size_t>(r)], row(r), rows.spec.value_dim);
    }
  }
};

template <typename T>
void forward(
    const DeltaSpec& spec, const at::Tensor& qkv_NC, const DeltaGates& gates, const SequenceInfo& seq,
    DeltaResult& result) {
  const Rows<T> rows(spec, qkv_NC, gates);
  T *out = result.out_NV.mutable_data_ptr<T>(), *written = result.written_NV.mutable_data_ptr<T>();
  for_each_segment(spec, seq, [&](int64_t first, int64_t length, int64_t key_head) {
    State<T> state(spec);
    for (int64_t head = key_head * rows.heads_per_key; head < (key_head + 1) * rows.heads_per_key; ++head) {
      state.reset();
      for (int64_t n = first; n < first + length; ++n) {
        state.decay_and_compare(rows, n, head);
        state.write_and_read(rows);
        for (int64_t c = 0; c < spec.value_dim; ++c) {
          out[rows.value_at(n, head) + c] = static_cast<T>(state.out[static_cast<size_t>(c)]);
          written[rows.value_at(n, head) + c] = static_cast<T>(state.written[static_cast<size_t>(c)]);
        }
      }
    }
  });
}

// The backward pass of a segment and of the value heads that share a key head. With G the gradient of the state after a
// token, of which C is the part from the tokens after it and q dout^T that of its own output:
//
//   dw = G^T k, dv = beta dw, dbeta = dw . (v - P^T k), dq = S dout, dk = G w - beta P dw
//
// and the gradient of the state before it is a (G - k (beta dw)^T). That of the decay is <G - k (beta dw)^T, P>, and as
// <C, S> is the decay's gradient of the token after it, it is more than that one by
//
//   dout . P^T q - dv . P^T k - w . C^T k
//
// of which each term has the factor a of this token or of the next one: where states decay fast, so do the roundings.
// C runs backwards, in a first pass; S forwards, in a second one.
template <typename T>
class SegmentBackward {
  using acc_t = at::opmath_type<T>;

 public:
  SegmentBackward(const Rows<T>& rows, const T* dout, const T* written, int64_t first, int64_t length, int64_t key_head)
      : rows_(rows),
        spec_(rows.spec),
        dout_(dout),
        written_(written),
        first_(first),
        length_(length),
        key_head_(key_head),
        dq_(static_cast<size_t>(length * spec_.key_dim)),
        dk_(dq_.size()),
        carried_(static_cast<size_t>(length * spec_.value_dim)),
        terms_(static_cast<size_t>(length)) {}

  void run(T* dqkv, acc_t* ddecay, acc_t* dbeta) {
    for (int64_t head = key_head_ * rows_.heads_per_key; head < (key_head_ + 1) * rows_.heads_per_key; ++head) {
      walk_back(head);
      walk_forward(head, dqkv, dbeta);
      acc_t sum = 0;
      for (int64_t t = length_ - 1; t >= 0; --t) {
        sum += terms_[static_cast<size_t>(t)];
        ddecay[(first_ + t) * spec_.value_heads + head] = sum;
      }
    }
    for (int64_t t = 0; t < length_; ++t) {
      const int64_t n = first_ + t;
      T* dq = dqkv + n * rows_.channels + key_head_ * spec_.key_dim;
      unnormalise(rows_.q(n, key_head_), dq_.data() + t * spec_.key_dim, rows_.scale, dq);
      unnormalise(rows_.k(n, key_head_), dk_.data() + t * spec_.key_dim, acc_t(1), dq + spec_.key_width());
    }
  }

 private:
  void walk_back(int64_t head) {
    const int64_t width = spec_.value_dim;
    State<T> gradient(spec_);
    std::vector<acc_t> dout(static_cast<size_t>(width)), written(dout.size());
    for (int64_t t = length_ - 1; t >= 0; --t) {
      const int64_t n = first_ + t, gate = n * spec_.value_heads + head;
      rows_.normalise(rows_.q(n, key_head_), rows_.scale, gradient.q.data());
      rows_.normalise(rows_.k(n, key_head_), acc_t(1), gradient.k.data());
      convert(dout_ + rows_.value_at(n, head), dout.data(), width);
      convert(written_ + rows_.value_at(n, head), written.data(), width);
      acc_t* carried = carried_.data() + t * width;
      std::fill_n(carried, width, acc_t(0));
      acc_t* dk = dk_.data() + t * spec_.key_dim;
      for (int64_t r = 0; r < spec_.key_dim; ++r) {
        add_scaled(carried, gradient.k[static_cast<size_t>(r)], gradient.row(r), width);
        add_scaled(gradient.row(r), gradient.q[static_cast<size_t>(r)], dout.data(), width);
        dk[r] += dot(gradient.row(r), written.data(), width);
      }
      std::vector<acc_t>& dwritten = gradient.held;
      set_dwritten(gradient, carried, dout, dwritten);
      const acc_t a = std::exp(rows_.decay[gate]), beta = rows_.beta[gate];
      for (int64_t r = 0; r < spec_.key_dim; ++r) {
        acc_t* row = gradient.row(r);
        const acc_t factor = gradient.k[static_cast<size_t>(r)] * beta;
        for (int64_t c = 0; c < width; ++c) {
          row[c] = a * (row[c] - factor * dwritten[static_cast<size_t>(c)]);
        }
      }
    }
  }

  void walk_forward(int64_t head, T* dqkv, acc_t* dbeta) {
    const int64_t width = spec_.value_dim;
    State<T> state(spec_);
    std::vector<acc_t> dout(static_cast<size_t>(width)), dv(dout.size()), dwritten(dout.size());
    for (int64_t t = 0; t < length_; ++t) {
      const int64_t n = first_ + t, gate = n * spec_.value_heads + head;
      const acc_t beta = rows_.beta[gate];
      const acc_t* carried = carried_.data() + t * width;
      convert(dout_ + rows_.value_at(n, head), dout.data(), width);
      state.decay_and_compare(rows_, n, head);
      set_dwritten(state, carried, dout, dwritten);
      acc_t beta_sum = 0;
      for (int64_t c = 0; c < width; ++c) {
        const auto i = static_cast<size_t>(c);
        dv[i] = beta * dwritten[i];
        beta_sum += dwritten[i] * (state.v[i] - state.held[i]);
      }
      dbeta[gate] = beta_sum;
      acc_t *dq = dq_.data() + t * spec_.key_dim, *dk = dk_.data() + t * spec_.key_dim;
      std::fill(state.out.begin(), state.out.end(), acc_t(0)); // what q reads before the token writes
      for (int64_t r = 0; r < spec_.key_dim; ++r) {
        const auto i = static_cast<size_t>(r);
        add_scaled(state.out.data(), state.q[i], state.row(r), width);
        dk[r] -= dot(state.row(r), dv.data(), width);
        add_scaled(state.row(r), state.k[i], state.written.data(), width);
        dq[r] += dot(state.row(r), dout.data(), width);
      }
      terms_[static_cast<size_t>(t)] = dot(dout.data(), state.out.data(), width) -
          dot(dv.data(), state.held.data(), width) - dot(carried, state.written.data(), width);
      T* dvalue = dqkv + n * rows_.channels + 2 * spec_.key_width() + head * width;
      for (int64_t c = 0; c < width; ++c) {
        dvalue[c] = static_cast<T>(dv[static_cast<size_t>(c)]);
      }
    }
  }

  // G^T k of C^T k. `token`: has its q and k.
  void set_dwritten(
      const State<T>& token, const acc_t* carried, const std::vector<acc_t>& dout, std::vector<acc_t>& dwritten) const {
    const acc_t overlap = dot(token.q.data(), token.k.data(), spec_.key_dim);
    for (size_t c = 0; c < dout.size(); ++c) {
      dwritten[c] = carried[c] + overlap * dout[c];
    }
  }

  // The gradient of x, given that of x / length * factor.
  void unnormalise(const T* x, const acc_t* dy, acc_t factor, T* dx) {
    std::vector<acc_t> direction(static_cast<size_t>(spec_.key_dim));
    const acc_t inverse = rows_.normalise(x, acc_t(1), direction.data());
    const acc_t along = dot(direction.data(), dy, spec_.key_dim);
    for (int64_t d = 0; d < spec_.key_dim; ++d) {
      dx[d] = static_cast<T>(factor * inverse * (dy[d] - direction[static_cast<size_t>(d)] * along));
    }
  }

  const Rows<T>& rows_;
  const DeltaSpec& spec_;
  const T *dout_, *written_;
  int64_t first_, length_, key_head_;
  std::vector<acc_t> dq_, dk_; // [length, Dk], summed over the value heads
  std::vector<acc_t> carried_; // C^T k, [length, Dv], of one value head
  std::vector<acc_t> terms_; // of the decay's gradient
};

template <typename T>
void backward(
    const DeltaSpec& spec, const at::Tensor& dout_NV, const at::Tensor& qkv_NC, const DeltaGates& gates,
    const at::Tensor& written_NV, const SequenceInfo& seq, DeltaGradients& gradients) {
  using acc_t = at::opmath_type<T>;
  const Rows<T> rows(spec, qkv_NC, gates);
  T* dqkv = gradients.dqkv_NC.mutable_data_ptr<T>();
  auto* ddecay = gradients.dgates.decay_NA.mutable_data_ptr<acc_t>();
  auto* dbeta = gradients.dgates.beta_NA.mutable_data_ptr<acc_t>();
  for_each_segment(spec, seq, [&](int64_t first, int64_t length, int64_t key_head) {
    SegmentBackward<T>(rows, dout_NV.const_data_ptr<T>(), written_NV.const_data_ptr<T>(), first, length, key_head)
        .run(dqkv, ddecay, dbeta);
  });
}

} // namespace

void delta_rule_forward_cpu(
    const DeltaSpec& spec, const at::Tensor& qkv_NC, const DeltaGates& gates, const SequenceInfo& seq,
    DeltaResult& result) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, qkv_NC.scalar_type(), "delta_rule", [&] {
    forward<scalar_t>(spec, qkv_NC, gates, seq, result);
  });
}

void delta_rule_backward_cpu(
    const DeltaSpec& spec, const at::Tensor& dout_NV, const at::Tensor& qkv_NC, const DeltaGates& gates,
    const at::Tensor& written_NV, const SequenceInfo& seq, DeltaGradients& gradients) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, qkv_NC.scalar_type(), "delta_rule_backward", [&] {
    backward<scalar_t>(spec, dout_NV, qkv_NC, gates, written_NV, seq, gradients);
  });
}

} // namespace distill::models
