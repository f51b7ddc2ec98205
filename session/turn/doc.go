// Package turn keeps the turns of conversations: what an agent has said, made and remembered goes back together with the files. The daemon has an Engine
// for its socket, and a program that opens a workspace in its own process has one too, so that both mean the same.
//
// # What a turn is
//
// A turn belongs to a conversation, works in main or in a branch, and has a parent: the completed turn whose state it begins with. Its ID is that of the
// checkpoint that will be made when it completes; it is known when the turn begins.
//
//	pending ──> completed   its checkpoint and its state are committed in one transaction
//	        ├─> failed      the rollback of the files and the status are
//	        └─> aborted     committed at once, by whoever asks; the files go back when the turn's owner ends it, or is gone, or by force
//
// Only a completed turn can be resumed. Its state never changes, and neither does a status other than pending. What a pending turn is given is kept
// in memory, and counts when it completes. An engine that is closed puts it into the store, so that the turn goes on with the next one. If the engine's process dies,
// that is lost: such a turn can't complete any more, only fail (Turn.Unsaved).
//
// A pending turn whose owner's process is gone is ended by the next turn of that branch: it has failed, with the finish reason "interrupted", and its files go back.
//
// A turn that does not complete puts the files back to what they were when it began: the checkpoint of its parent, or, if anything has changed since that
// one, or there is no parent, a checkpoint that Begin makes (Turn.Base).
//
// In main, and in each branch, one turn at a time is under way. Attempts may be made inside it.
//
// # State
//
// A state has messages, artifacts, a custom document and saved bindings, all JSON that the engine does not interpret, but for the names of artifacts and
// for patches of the custom document. In the store a state is a list of blobs by their content, so that a conversation costs what is new in it.
//
// # Locks
//
// In this order: Engine.collecting, which one collection at a time holds; the lock of a turn (turnLock), held while the turn begins, is updated, ended or aborted, and so
// over the snapshot or the rollback of its end: an abort and an end never overtake each other; Engine.mu, which guards the tables of turns, and is held for no I/O but the
// removal of a damaged record. A turn's record is changed with both of the last two held, so that either is enough to read it. No lock of the workspace is held when any of these is
// taken: what is called inside its transactions takes none.
package turn
