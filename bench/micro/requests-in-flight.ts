import {
  RequestAction,
  RequestKind,
  RequestsInFlight,
} from '../../src/server/requests-in-flight.ts';
import { measure } from './measure.ts';

/** Noting requests and matching replies; a message is a request or a reply. */

const requests = new RequestsInFlight();
const { forward, fake } = RequestAction;

/** Pushes what the letters of `sent` say and feeds the replies; all must be answered by then. */
function round(sent: readonly RequestKind[], replies: Uint8Array): void {
  for (let i = 0; i < sent.length; i++) requests.push(sent[i]!, forward);
  for (let i = 0; i < replies.length; i++) {
    requests.onReply(replies[i]!);
    requests.nextFake();
  }
}

const SIMPLE = [RequestKind.query];
const SIMPLE_REPLIES = Buffer.from('TDCZ');
measure('simple query, one row', SIMPLE.length + SIMPLE_REPLIES.length, () => {
  round(SIMPLE, SIMPLE_REPLIES);
});

const EXTENDED = [RequestKind.bind, RequestKind.describe, RequestKind.execute, RequestKind.sync];
const EXTENDED_REPLIES = Buffer.from('2TDCZ');
measure('Bind, Describe, Execute, Sync', EXTENDED.length + EXTENDED_REPLIES.length, () => {
  round(EXTENDED, EXTENDED_REPLIES);
});

const PIPELINE = new Array<readonly RequestKind[]>(100).fill(EXTENDED).flat();
const PIPELINE_REPLIES = Buffer.from('2TDCZ'.repeat(100));
measure('the same, 100 batches at once', PIPELINE.length + PIPELINE_REPLIES.length, () => {
  round(PIPELINE, PIPELINE_REPLIES);
});

measure('a Parse that is answered by the pooler', 1, () => {
  requests.push(RequestKind.parse, fake);
  requests.nextFake();
});
if (requests.size !== 0 || requests.isDoubtful) throw new Error('replies did not match');
