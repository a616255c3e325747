//! A first-in, first-out queue that refuses instead of growing.
//!
//! Invariants
//! - `len() <= count_max`.

use std::collections::VecDeque;

/// The queue.
#[derive(Debug, Clone)]
pub struct BoundedQueue<T> {
    items: VecDeque<T>,
    count_max: usize,
}

impl<T> BoundedQueue<T> {
    /// An empty queue for at most `count_max` items.
    #[must_use]
    pub const fn new(count_max: usize) -> Self {
        Self {
            items: VecDeque::new(),
            count_max,
        }
    }

    /// Appends `item`, or gives it back when the queue is full.
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.is_full() {
            return Err(item);
        }
        self.items.push_back(item);
        Ok(())
    }

    /// Takes the oldest item.
    pub fn pop(&mut self) -> Option<T> {
        self.items.pop_front()
    }

    /// The oldest item.
    #[must_use]
    pub fn front(&self) -> Option<&T> {
        self.items.front()
    }

    /// Items in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The next push would be refused.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.items.len() >= self.count_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_order_and_gives_back_what_does_not_fit() {
        let mut queue = BoundedQueue::new(2);
        assert!(queue.is_empty());
        assert_eq!(queue.push(1), Ok(()));
        assert_eq!(queue.push(2), Ok(()));
        assert!(queue.is_full());
        assert_eq!(queue.push(3), Err(3));
        assert_eq!(queue.front(), Some(&1));
        assert_eq!(queue.pop(), Some(1));
        assert_eq!(queue.push(4), Ok(()));
        assert_eq!(
            (queue.pop(), queue.pop(), queue.pop()),
            (Some(2), Some(4), None)
        );
        assert_eq!(queue.len(), 0);
    }
}
