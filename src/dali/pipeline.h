#pragma once

#include <dali/dali.h>

#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "data/image_decoder.h"

namespace mnist_train::dali {

/// Frees one of DALI's handles.
struct Free {
  void operator()(daliPipeline_h handle) const { (void)daliPipelineDestroy(handle); }
  void operator()(daliPipelineOutputs_h handle) const { (void)daliPipelineOutputsDestroy(handle); }
  void operator()(daliTensorList_h handle) const { (void)daliTensorListDecRef(handle, nullptr); }
  void operator()(daliTensor_h handle) const { (void)daliTensorDecRef(handle, nullptr); }
};
template <typename Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Free>;

/// external input -> decoders.Image -> Resize -> CropMirrorNormalize (which puts colours into
/// planes). DALI chooses no samples, shuffles nothing and pads nothing. With a GPU the decoder is
/// `mixed`, and what follows is done there.
class Pipeline {
 public:
  /// For batches of at most `max_batch` samples. Throws Error(kRunFailed) with DALI's reason.
  Pipeline(const data::ImageDecoderSetup& setup, std::size_t max_batch);

  std::size_t max_batch() const { return max_batch_; }

  /// Begins with a batch of encoded files, which have to stay where they are until it is popped.
  void feed(const std::vector<std::span<const std::uint8_t>>& files);
  /// Waits for the earliest batch that was fed and not popped. Its memory is DALI's, until the
  /// owner goes. Throws Error(kData); nothing can be fed or popped then any more.
  data::ImageDecoder::Batch pop();

 private:
  void create();
  void add_input();
  void add_operators();
  void add_operator(const char* schema, daliBackend_t backend, const char* output,
                    const std::vector<daliArgDesc_t>& arguments);
  void build();

  data::ImageDecoderSetup setup_;
  std::size_t max_batch_;
  Owned<daliPipeline_h> pipeline_;
  daliIODesc_t last_{};  // what the next operator takes
};

}  // namespace mnist_train::dali
