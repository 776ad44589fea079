// Makes torch's autograd find a CUDA device that does nothing (_eager_kernels.py).
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
using c10::Device, c10::Stream;

struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  Device first() const { return Device(c10::DeviceType::CUDA, 0); }
  Stream usual() const { return Stream(Stream::DEFAULT, first()); }
  Device exchangeDevice(Device) const override { return first(); }
  Device getDevice() const override { return first(); }
  Stream getStream(Device) const noexcept override { return usual(); }
  Stream getDefaultStream(Device) const override { return usual(); }
  Stream getNewStream(Device, int) const override { return usual(); }
  Stream exchangeStream(Stream) const noexcept override { return usual(); }
  void record(void**, const Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
};
struct CUDAHooks : at::CUDAHooksInterface {
  CUDAHooks(at::CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
};
namespace c10::impl { C10_REGISTER_GUARD_IMPL(CUDA, Guard) }
namespace at { using ::CUDAHooks; REGISTER_CUDA_HOOKS(CUDAHooks) }
