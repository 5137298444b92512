#include "model/relu_max_pool.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/relu_max_pool_rows.h"

namespace mnist_train::model {

namespace {

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;
constexpr std::int64_t kRowsPerTask = 64;

/// Where the rows of a batch lie in memory, channels last.
struct Rows {
  std::int64_t height, width, channels;  // of the input

  std::int64_t out_height() const { return height / 2; }
  std::int64_t out_width() const { return width / 2; }
  std::int64_t out_row() const { return out_width() * channels; }
  std::int64_t in_row() const { return width * channels; }
  /// Of the upper one of the two rows that output row `row` (of all images together) comes from.
  std::int64_t in_offset(std::int64_t row) const {
    return (row / out_height() * height + row % out_height() * 2) * in_row();
  }
};

/// Calls `work(rows, row)` for each output row of the batch, with the values' bits as integers.
template <class Work>
void for_each_row(at::IntArrayRef sizes, const Work& work) {
  const Rows rows{sizes[2], sizes[3], sizes[1]};
  at::parallel_for(0, sizes[0] * rows.out_height(), kRowsPerTask,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t row = begin; row < end; ++row) work(rows, row);
                   });
}

template <class Bits>
const Bits* bits_of(const at::Tensor& values) {
  return static_cast<const Bits*>(values.const_data_ptr());
}

template <class Bits>
void forward_rows(const at::Tensor& x, const at::Tensor& out, const at::Tensor& choice) {
  for_each_row(x.sizes(),
               [&, kernel = pool_rows<Bits>(), from = bits_of<Bits>(x),
                to = static_cast<Bits*>(out.data_ptr()),
                chosen = choice.data_ptr<std::uint8_t>()](const Rows& rows, std::int64_t row) {
                 const Bits* top = from + rows.in_offset(row);
                 kernel.pool(top, top + rows.in_row(), to + row * rows.out_row(),
                             chosen + row * rows.out_row(), rows.out_width(), rows.channels);
               });
}

template <class Bits>
void backward_rows(const at::Tensor& gradient, const at::Tensor& choice, const at::Tensor& into) {
  for_each_row(into.sizes(), [&, kernel = pool_rows<Bits>(), from = bits_of<Bits>(gradient),
                              to = static_cast<Bits*>(into.data_ptr()),
                              chosen = choice.const_data_ptr<std::uint8_t>()](const Rows& rows,
                                                                              std::int64_t row) {
    Bits* top = to + rows.in_offset(row);
    kernel.spread(from + row * rows.out_row(), chosen + row * rows.out_row(), top,
                  top + rows.in_row(), rows.out_width(), rows.channels);
  });
}

class ReluMaxPool : public torch::autograd::Function<ReluMaxPool> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input) {
    const at::Tensor x = input.contiguous(kChannelsLast);
    const std::vector<std::int64_t> sizes{x.size(0), x.size(1), x.size(2) / 2, x.size(3) / 2};
    const at::Tensor out = at::empty(sizes, x.options().memory_format(kChannelsLast));
    const at::Tensor choice =
        at::empty(sizes, x.options().dtype(at::kByte).memory_format(kChannelsLast));
    if (x.scalar_type() == at::kFloat) {
      forward_rows<std::int32_t>(x, out, choice);
    } else {
      forward_rows<std::int16_t>(x, out, choice);
    }
    context->save_for_backward({choice});
    context->saved_data["height"] = x.size(2);
    context->saved_data["width"] = x.size(3);
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor choice = context->get_saved_variables()[0];
    const at::Tensor gradient = gradients[0].contiguous(kChannelsLast);
    const std::int64_t height = context->saved_data["height"].toInt();
    const std::int64_t width = context->saved_data["width"].toInt();
    const auto options = gradient.options().memory_format(kChannelsLast);
    const std::vector<std::int64_t> sizes{gradient.size(0), gradient.size(1), height, width};
    const at::Tensor into = at::empty(sizes, options);
    if (height % 2 != 0 || width % 2 != 0) into.zero_();
    if (gradient.scalar_type() == at::kFloat) {
      backward_rows<std::int32_t>(gradient, choice, into);
    } else {
      backward_rows<std::int16_t>(gradient, choice, into);
    }
    return {into};
  }
};

}  // namespace

at::Tensor relu_max_pool(const at::Tensor& x) {
  const bool ours =
      x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
  // ReLU after the pooling gives the same numbers and gradients as before it, on a quarter of the
  // elements.
  return ours ? ReluMaxPool::apply(x) : at::relu(at::max_pool2d(x, 2));
}

}  // namespace mnist_train::model
