use bytes::Bytes;
#[derive(Debug, Default)]
pub(crate) struct Tail(Vec<u64>);
impl Tail {
    pub(crate) fn push(&mut self, _line: &[u8]) {
        self.0.clear();
    }
}
pub(crate) fn first_new(_tail: &Tail, _log: &[Bytes]) -> usize {
    0
}
pub(crate) fn overlap(_log: &[Bytes], _stream: &[Bytes]) -> usize {
    0
}
