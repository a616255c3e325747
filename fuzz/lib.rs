//! What the fuzz targets share: numbers and bytes out of an input.

/// An input that is read from its front; where it ends, zeros follow.
#[derive(Debug)]
pub struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    /// Of all its bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Whether anything is left.
    pub fn is_over(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next `count` bytes at most.
    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (head, tail) = self.bytes.split_at(count.min(self.bytes.len()));
        self.bytes = tail;
        head
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }

    /// A byte.
    pub fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// Two bytes as a number.
    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Eight bytes as a number.
    pub fn long(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let taken = self.take(N);
        bytes[..taken.len()].copy_from_slice(taken);
        bytes
    }
}
