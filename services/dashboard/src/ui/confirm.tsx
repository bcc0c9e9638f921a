// Confirmation of what cannot be taken back. `confirm` resolves to the answer.
import * as Alert from "@radix-ui/react-alert-dialog";
import { Store, useStore } from "../store.ts";

interface Question {
  title: string;
  text: string;
  action: string;
  answer: (yes: boolean) => void;
}

const question = new Store<Question | null>(null);

export function confirm(content: Omit<Question, "answer">): Promise<boolean> {
  return new Promise((resolve) => {
    question.set({
      ...content,
      answer: (yes) => {
        question.set(null);
        resolve(yes);
      },
    });
  });
}

export function ConfirmDialog() {
  const open = useStore(question);
  return (
    <Alert.Root open={open !== null} onOpenChange={(stays) => !stays && open?.answer(false)}>
      <Alert.Portal>
        <Alert.Overlay className="overlay" />
        <Alert.Content className="dialog small">
          <Alert.Title className="dialog-title">{open?.title}</Alert.Title>
          <Alert.Description className="dialog-text">{open?.text}</Alert.Description>
          <div className="dialog-actions">
            <Alert.Cancel className="button">Cancel</Alert.Cancel>
            <Alert.Action className="button danger" onClick={() => open?.answer(true)}>
              {open?.action}
            </Alert.Action>
          </div>
        </Alert.Content>
      </Alert.Portal>
    </Alert.Root>
  );
}
