//! Gives the library the name under which cudarc looks for a driver first, so that a test that has loaded it gets it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
}
