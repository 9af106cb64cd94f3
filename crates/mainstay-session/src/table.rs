//! A table whose keys stay unique: the key of a removed value finds nothing, also when its slot is used again.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

pub struct Key<T> {
    index: u32,
    /// How often the slot was used before.
    serial: u32,
    kind: PhantomData<fn() -> T>,
}

impl<T> Key<T> {
    /// A key that finds nothing.
    pub(crate) fn dangling() -> Self {
        Self { index: u32::MAX, serial: u32::MAX, kind: PhantomData }
    }

    /// The slot of the key. At any time, no two values of a table share one.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

#[derive(Debug)]
pub(crate) struct Table<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    serial: u32,
    value: Option<T>,
}

impl<T> Table<T> {
    pub(crate) fn insert(&mut self, value: T) -> Key<T> {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.value = Some(value);
            return Key { index, serial: slot.serial, kind: PhantomData };
        }
        let index = u32::try_from(self.slots.len()).expect("fewer than 2^32 values are alive");
        self.slots.push(Slot { serial: 0, value: Some(value) });
        Key { index, serial: 0, kind: PhantomData }
    }

    pub(crate) fn get(&self, key: Key<T>) -> Option<&T> {
        let slot = self.slots.get(key.index()).filter(|slot| slot.serial == key.serial)?;
        slot.value.as_ref()
    }

    pub(crate) fn get_mut(&mut self, key: Key<T>) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index()).filter(|slot| slot.serial == key.serial)?;
        slot.value.as_mut()
    }

    pub(crate) fn remove(&mut self, key: Key<T>) -> Option<T> {
        let slot = self.slots.get_mut(key.index()).filter(|slot| slot.serial == key.serial)?;
        let value = slot.value.take()?;
        self.free(key);
        Some(value)
    }

    /// Takes a value out to work on it. Its key finds nothing until [`Table::put_back`].
    pub(crate) fn take(&mut self, key: Key<T>) -> Option<T> {
        let slot = self.slots.get_mut(key.index()).filter(|slot| slot.serial == key.serial)?;
        slot.value.take()
    }

    pub(crate) fn put_back(&mut self, key: Key<T>, value: T) {
        let slot = &mut self.slots[key.index()];
        debug_assert!(slot.serial == key.serial && slot.value.is_none());
        slot.value = Some(value);
    }

    /// Frees the slot of a value that was taken and will not be put back.
    pub(crate) fn free(&mut self, key: Key<T>) {
        let slot = &mut self.slots[key.index()];
        debug_assert!(slot.serial == key.serial && slot.value.is_none());
        slot.serial = slot.serial.wrapping_add(1);
        self.free.push(key.index);
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key<T>, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let index = u32::try_from(index).expect("keys have 32 bits");
            Some((Key { index, serial: slot.serial, kind: PhantomData }, slot.value.as_ref()?))
        })
    }

    pub(crate) fn keys(&self) -> Vec<Key<T>> {
        self.iter().map(|(key, _)| key).collect()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Key<T> {}

impl<T> PartialEq for Key<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.index, self.serial) == (other.index, other.serial)
    }
}

impl<T> Eq for Key<T> {}

impl<T> PartialOrd for Key<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Key<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.index, self.serial).cmp(&(other.index, other.serial))
    }
}

impl<T> Hash for Key<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.index, self.serial).hash(state);
    }
}

impl<T> fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.serial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_finds_its_own_value_only() {
        let mut table = Table::default();
        let (first, second) = (table.insert("a"), table.insert("b"));
        assert_eq!(table.remove(first), Some("a"));
        let third = table.insert("c");
        assert_eq!((first.index(), table.get(first)), (third.index(), None));
        assert_eq!((table.get(second), table.get(third)), (Some(&"b"), Some(&"c")));
        assert_eq!(table.take(third), Some("c"));
        assert_eq!(table.get(third), None);
        assert_eq!((table.remove(third), table.len()), (None, 2));
        table.put_back(third, "d");
        assert_eq!(table.remove(third), Some("d"));
        assert_eq!((table.len(), table.keys()), (1, vec![second]));
    }
}
