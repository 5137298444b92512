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
struct FreeHandle {
  void operator()(daliPipeline_h handle) const { (void)daliPipelineDestroy(handle); }
  void operator()(daliPipelineOutputs_h handle) const { (void)daliPipelineOutputsDestroy(handle); }
  void operator()(daliTensorList_h handle) const { (void)daliTensorListDecRef(handle, nullptr); }
  void operator()(daliTensor_h handle) const { (void)daliTensorDecRef(handle, nullptr); }
};
template <typename Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, FreeHandle>;

/// A pipeline of DALI: external input -> decoders.Image -> Resize -> CropMirrorNormalize, which
/// puts colours into planes. DALI chooses no samples, shuffles nothing and pads nothing. With a GPU
/// the decoder is `mixed`, and what follows is done there.
class Pipeline {
 public:
  /// Builds it for batches of at most `max_batch` samples. Throws Error(kRunFailed) with DALI's
  /// reason.
  Pipeline(const data::ImageDecoderSetup& setup, std::size_t max_batch);

  std::size_t max_batch() const { return max_batch_; }

  /// Begins to decode a batch of encoded files, which must stay where they are until it is popped.
  void feed(const std::vector<std::span<const std::uint8_t>>& files);
  /// Waits for the earliest batch that was fed and not popped. Its memory belongs to DALI and is
  /// used again when the last owner is gone. Throws Error(kData), after which nothing can be fed or
  /// popped any more.
  data::DecodedBatch pop();

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
