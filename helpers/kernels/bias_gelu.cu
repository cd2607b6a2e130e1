#include <c10/cuda/CUDAStream.h>

template <typename T>
__global__ void kernel(const T* h, const T* bias, T* out, int64_t n, int64_t cols) {
  int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i >= n) return;
  float v = float(h[i]) + float(bias[i % cols]);
  float inner = 1.5957691216f * (v + 0.044715f * v * v * v);
  out[i] = T(v / (1.0f + expf(-inner)));
}

torch::Tensor bias_gelu(torch::Tensor h, torch::Tensor bias) {
  TORCH_CHECK(h.is_cuda() && h.is_contiguous() && bias.is_contiguous());
  auto out = torch::empty_like(h);
  auto stream = c10::cuda::getCurrentCUDAStream();
  AT_DISPATCH_REDUCED_FLOATING_TYPES(h.scalar_type(), "bias_gelu", [&] {
    kernel<scalar_t><<<(h.numel() + 255) / 256, 256, 0, stream>>>(
        h.data_ptr<scalar_t>(), bias.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(),
        h.numel(), h.size(-1));
  });
  return out;
}
